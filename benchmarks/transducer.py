"""Measures the loss of a token-and-duration transducer with its joint network, and transformers' loss.

Clips of 20 s with 70 labels at the sizes of Parakeet TDT 0.6B v3, in bf16, with random numbers. A side takes
the projected frames and labels and the output weights, and returns the loss and the gradients of all of them.
transformers' loss is pure torch on logits; octavo.nn.tdt_loss takes the same logits; octavo.nn.tdt_joint_loss
never stores all of them. The losses of all sides are compared first. The memory is the peak above the inputs,
gradients included. The matrix rate is that of an 8192 x 8192 x 8192 matmul in this run. `matmuls` is the
share of that rate that the joint network's four matmuls would reach if the side did nothing else.

PYTHONPATH=adapters/python python benchmarks/transducer.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import harness  # noqa: F401  must be first: it adds the package of this tree to the import path
import torch
from octavo.nn import tdt_joint_loss, tdt_loss
from report import option_parser
from stopwatch import peak_bytes, reset_peak, times_ms

DURATIONS = [0, 1, 2, 3, 4]
SIGMA = 0.02


@dataclass(frozen=True)
class Sizes:
    clips: int
    frames: int
    labels: int
    hidden: int
    tokens: int  # includes blank, which is the last

    @property
    def outputs(self) -> int:
        return self.tokens + len(DURATIONS)

    def flops(self) -> float:
        """Returns the FLOPs of the matmuls of a loss with gradients that computes the logits twice."""
        return 4 * 2.0 * self.clips * self.frames * (self.labels + 1) * self.hidden * self.outputs


@dataclass(frozen=True)
class Row:
    side: str
    loss: float
    ms: float
    least_ms: float
    peak_gb: float
    products: float | None


class Inputs:
    def __init__(self, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(1)

        def made(*shape: int, scale: float = 1.0) -> torch.Tensor:
            values = torch.randn(*shape, generator=generator) * scale
            return values.to(device, dtype).requires_grad_()

        s = sizes
        self.sizes = sizes
        self.encoder = made(s.clips, s.frames, s.hidden)
        self.predictor = made(s.clips, s.labels + 1, s.hidden)
        self.weight = made(s.outputs, s.hidden, scale=s.hidden**-0.5)
        self.bias = torch.zeros(s.outputs, device=device, dtype=dtype, requires_grad=True)
        self.targets = torch.randint(0, s.tokens - 1, (s.clips, s.labels), generator=generator).to(device)
        self.frames = torch.full((s.clips,), s.frames)
        self.labels = torch.full((s.clips,), s.labels)
        self.device_frames, self.device_labels = self.frames.to(device), self.labels.to(device)

    def leaves(self) -> list[torch.Tensor]:
        return [self.encoder, self.predictor, self.weight, self.bias]

    def logits(self) -> torch.Tensor:
        hidden = torch.relu(self.encoder[:, :, None] + self.predictor[:, None])
        return torch.nn.functional.linear(hidden, self.weight, self.bias)


Loss = Callable[[Inputs], torch.Tensor]


def joint(x: Inputs) -> torch.Tensor:
    blank = x.sizes.tokens - 1
    return tdt_joint_loss(
        x.encoder, x.predictor, x.weight, x.bias, x.targets, x.frames, x.labels, blank, DURATIONS, SIGMA
    )


def on_logits(x: Inputs) -> torch.Tensor:
    blank = x.sizes.tokens - 1
    return tdt_loss(x.logits(), None, x.targets, x.device_frames, x.device_labels, blank, DURATIONS, SIGMA)


def transformers_loss() -> Loss | None:
    try:
        from transformers.loss.loss_tdt import tdt_loss as peer
    except ImportError:
        return None

    def run(x: Inputs) -> torch.Tensor:
        tokens, blank = x.sizes.tokens, x.sizes.tokens - 1
        logits = x.logits()
        parts = (logits[..., :tokens].float(), logits[..., tokens:].float())
        return peer(*parts, x.targets, x.device_frames, x.device_labels, blank, DURATIONS, SIGMA)

    return run


def matrix_rate(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Returns the FLOP/s of a matmul of square matrices, the best of ten."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    ms = times_ms(device, lambda: torch.mm(a, b, out=out), 10, warm_up=3)
    return 2.0 * size**3 / (min(ms) * 1e-3)


def measure(name: str, loss: Loss, x: Inputs, repeat: int, rate: float | None) -> Row:
    device = x.encoder.device
    result = 0.0

    def step() -> None:
        nonlocal result
        for leaf in x.leaves():
            leaf.grad = None
        value = loss(x)
        value.backward()  # type: ignore[no-untyped-call]
        result = value.detach()  # type: ignore[assignment]

    step()
    for leaf in x.leaves():
        leaf.grad = None
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    reset_peak(device)
    ms = times_ms(device, step, repeat, warm_up=0)
    peak = (peak_bytes(device) - before) / 1e9
    median = statistics.median(ms)
    share = x.sizes.flops() / (median * 1e-3) / rate if rate else None
    return Row(name, float(result), median, min(ms), peak, share)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = option_parser(__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    for name, value in (("clips", 8), ("frames", 250), ("labels", 70), ("hidden", 640), ("tokens", 8193)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument(
        "--sides", default="joint,logits,transformers", help="sides to measure, in this order"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def run(arguments: Sequence[str] | None = None) -> list[Row]:
    options = parse(arguments)
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    x = Inputs(
        Sizes(options.clips, options.frames, options.labels, options.hidden, options.tokens), device, dtype
    )
    sides: dict[str, Loss | None] = {"joint": joint, "logits": on_logits, "transformers": transformers_loss()}
    wanted = options.sides.split(",")
    unknown = [name for name in wanted if name not in sides]
    if unknown:
        raise SystemExit(f"--sides {options.sides}: {unknown[0]} is not one of {', '.join(sides)}")
    rate = matrix_rate(device, dtype, 8192) if device.type == "cuda" else None
    rows = []
    for name in wanted:
        loss = sides[name]
        if loss is None:
            print("transformers is not installed: its loss is skipped", file=sys.stderr)
            continue
        # The peer takes seconds, so a few rounds suffice.
        rounds = min(options.repeat, 3) if name == "transformers" else options.repeat
        rows.append(measure(name, loss, x, rounds, rate if name == "joint" else None))
    off = [abs(row.loss - rows[0].loss) / abs(rows[0].loss) for row in rows]
    if max(off) > (1e-5 if dtype == torch.float32 else 2e-3):
        raise SystemExit(f"the sides' losses differ: {[row.loss for row in rows]}")
    if options.json:
        print(json.dumps({"sizes": asdict(x.sizes), "rate": rate, "rows": [asdict(row) for row in rows]}))
        return rows
    if rate:
        print(f"matrix rate {rate / 1e12:.0f} TFLOP/s")
    print(f"{'side':14} {'loss':>10} {'ms':>9} {'least':>9} {'peak GB':>8} {'matmuls':>8}")
    for row in rows:
        share = "" if row.products is None else f"{row.products:.0%}"
        print(
            f"{row.side:14} {row.loss:10.4f} {row.ms:9.2f} {row.least_ms:9.2f} {row.peak_gb:8.3f} {share:>8}"
        )
    return rows


if __name__ == "__main__":
    run()
