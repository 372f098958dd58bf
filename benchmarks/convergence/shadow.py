"""Compares the updates of low-bit states with those of fp32 states, for the same parameters and gradients.

fp32 AdamW trains. At every step each format gets its parameters and gradients; only the states differ. The
table has the norm of a format's update divided by that of fp32, the cosine between them, and the range of the
norm's ratio over the tensors. The values of fp32 are 1.

PYTHONPATH=adapters/python python benchmarks/convergence/shadow.py --text tinyshakespeare.txt
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import gpt
import run_inputs
import torch
from arms import octavo_adamw
from torch import Tensor

PRINTED = (1, 2, 5, 10, 30, 100, 200, 400, 1000, 2000)


def compare(update: Sequence[Tensor], reference: Sequence[Tensor]) -> str:
    mine, its = (torch.cat([u.flatten().double() for u in side]) for side in (update, reference))
    parts = [float(a.norm() / b.norm()) for a, b in zip(update, reference, strict=True) if b.norm() > 0]
    cosine = float(mine @ its / (mine.norm() * its.norm()))
    return f"{float(mine.norm() / its.norm()):.3f} | {cosine:.4f} | {min(parts):.2f} to {max(parts):.2f}"


class Shadow:
    """An optimizer of one format with copies of the parameters."""

    def __init__(self, parameters: Sequence[Tensor], **options: Any) -> None:
        self.parameters = [p.detach().clone().requires_grad_() for p in parameters]
        self.optimizer = octavo_adamw()(self.parameters, min_quantized_size=0, **options)

    def update(self, before: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        """Returns the update of these gradients, from the same parameters."""
        with torch.no_grad():
            for mine, start in zip(self.parameters, before, strict=True):
                mine.copy_(start)
        for mine, grad in zip(self.parameters, grads, strict=True):
            mine.grad = grad
        self.optimizer.step()
        return [mine.detach() - start for mine, start in zip(self.parameters, before, strict=True)]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--text", type=pathlib.Path, required=True)
    add("--states", default="8bit,fp8,4bit", help="formats to compare (8bit,fp8,4bit)")
    add("--beta2", type=float, default=0.999)
    add("--lr", type=float, default=5e-4)
    add("--steps", type=int, default=400)
    add("--layers", type=int, default=3)
    add("--width", type=int, default=128)
    add("--block", type=int, default=64)
    add("--batch", type=int, default=16)
    add("--device", default="cpu")
    options = parser.parse_args()
    tokens, vocabulary, crc = run_inputs.read_text(options.text.read_bytes())
    settings = run_inputs.Settings(
        crc, vocabulary, layers=options.layers, heads=4, width=options.width, block=options.block,
        batch=options.batch, steps=options.steps, dropout=0.0, precision="fp32",
    )  # fmt: skip
    inputs = run_inputs.SeedInputs.of(settings, 0, int(len(tokens) * 0.9))
    device = torch.device(options.device)
    parameters = [p.to(device).requires_grad_() for p in inputs.parameters]
    hyper: dict[str, Any] = {"lr": options.lr, "betas": (0.9, options.beta2), "weight_decay": 0.0}
    trained = octavo_adamw()(parameters, state="fp32", **hyper)
    shadows = {state: Shadow(parameters, state=state, **hyper) for state in options.states.split(",")}
    tokens, reach = tokens.to(device), torch.arange(settings.block + 1, device=device)
    print("| step | loss | state | norm | cosine | norm by tensor |\n|---|---|---|---|---|---|")
    for step in range(1, options.steps + 1):
        windows = tokens[inputs.offsets[step - 1].to(device)[:, None] + reach]
        loss = gpt.loss(settings.shape, parameters, windows, None)
        grads = torch.autograd.grad(loss, parameters)
        before = [p.detach().clone() for p in parameters]
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
        trained.step()
        reference = [p.detach() - start for p, start in zip(parameters, before, strict=True)]
        for state, other in shadows.items():
            update = other.update(before, grads)
            if step in PRINTED or step == options.steps:
                print(f"| {step} | {loss.item():.3f} | {state} | {compare(update, reference)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
