"""Writes bdh_golden.txt: outputs and gradients of the published BDH implementation, for the tests in
tests/train.

python tests/train/make_bdh_golden.py --reference PATH/TO/bdh

PATH is a checkout of the reference (its bdh.py); the file contains only numbers computed with it. Weights
and tokens are computed from formulas that the test repeats, so the file has only results: the loss, sampled
logits, and the norm and sampled elements of every parameter's gradient. They are computed in double, because
in fp32 the reference's own rounding errors would dominate the comparison.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import sys
from typing import Any

import torch

# name: layers, width, heads, multiplier, batch, tokens
CASES = {"small": (2, 16, 2, 8, 2, 6), "deep": (4, 32, 4, 16, 1, 12)}
PARAMETERS = ("decoder", "encoder", "encoder_v", "lm_head", "embed.weight")


def wave(count: int, phase: float) -> torch.Tensor:
    """Returns 0.2 sin(0.37 i + phase), computed in double and rounded once."""
    i = torch.arange(count, dtype=torch.float64)
    return (0.2 * torch.sin(0.37 * i + phase)).to(torch.float32)


def tokens(batch: int, length: int, shift: int) -> torch.Tensor:
    return ((torch.arange(batch * length) * 37 + 11 + shift) % 256).view(batch, length)


def sampled(tensor: torch.Tensor, count: int = 24) -> str:
    flat = tensor.detach().flatten()
    step = max(1, flat.numel() // count)
    return " ".join(f"{float(x):.15g}" for x in flat[::step][:count])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--reference", type=pathlib.Path, required=True)
    parser.add_argument(
        "--out", type=pathlib.Path, default=pathlib.Path(__file__).with_name("bdh_golden.txt")
    )
    asked = parser.parse_args()
    sys.path.insert(0, str(asked.reference))
    import bdh  # type: ignore[import-not-found]

    lines = []
    for name, (layers, width, heads, multiplier, batch, length) in CASES.items():
        config = bdh.BDHConfig(layers, width, 0.0, heads, multiplier, 256)
        model: Any = bdh.BDH(config)
        named = dict(model.named_parameters())
        with torch.no_grad():
            for phase, key in enumerate(PARAMETERS):
                named[key].copy_(wave(named[key].numel(), phase).view_as(named[key]))
        frequencies = model.attn.freqs.clone()  # the reference needs them in fp32
        model.double()
        model.attn.freqs = frequencies
        logits, loss = model(tokens(batch, length, 0), tokens(batch, length, 37))
        loss.backward()
        lines.append(f"case {name} {layers} {width} {heads} {multiplier} {batch} {length}")
        lines.append(f"loss {float(loss):.15g}")
        lines.append(f"logits {math.sqrt(float(logits.double().square().sum())):.15g} {sampled(logits)}")
        for key in PARAMETERS:
            grad = named[key].grad
            lines.append(f"grad {key} {float(grad.double().norm()):.15g} {sampled(grad)}")
    asked.out.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
