"""Tests whether FP8 would be faster for the matmuls of BDH's attention, which have no weight as operand.

A layer multiplies its rotated codes with themselves, [heads x texts, length, neurons], and in the backward
pass the gradient of these scores with the codes. Both operands are activations, so the gain of FP8 must pay
for casts that nothing else uses. The script times both matmuls as torch computes them and in FP8, and the
casts: the codes by rows for the scores; the transposed codes and the gradient for the backward pass.

    PYTHONPATH=adapters/python python benchmarks/fp8_attention.py [--texts 32] [--neurons 16384] [--json]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import harness  # must be first: it adds the package of this tree to the import path
import torch
from octavo import fp8
from octavo.fp8.layer_cache import FORWARD, Kinds, Layer, Shape, W, X, cached_layer
from report import option_parser
from stopwatch import median_us


@dataclass
class Row:
    """Microseconds."""

    product: str
    plain_us: float
    fp8_us: float
    casts_us: float

    @property
    def ratio(self) -> float:
        return self.plain_us / (self.fp8_us + self.casts_us)


REPEAT = 7


def times(layer: Layer, x: torch.Tensor, w: torch.Tensor, shared: bool) -> tuple[float, float, float]:
    """Returns the microseconds of x @ w in torch and in FP8, and of the casts; `shared` means one cast."""
    states = torch.ones(3, 2 + layer.numbers.length, dtype=torch.float32, device=x.device)
    stream, pairs = layer.stream(), [layer.empty_pair(operand) for operand in (X, W)]
    casts = 0.0
    for operand, source in ((X, x), (W, w)):
        _, rows, transposed = pairs[operand]

        def cast(o: int = operand, s: torch.Tensor = source, r: int = rows, t: int = transposed) -> None:
            layer.cast(o, s, r, t, states.data_ptr(), True, stream)

        us = median_us(x.device, cast, REPEAT)
        casts += 0.0 if shared and operand == W else us
    codes = (pairs[X][1], pairs[W][1], 0)
    product = median_us(x.device, lambda: layer.matmul(0, codes, (0, 0, 0), stream), REPEAT)
    right = w if layer.shape.transposed_weight else w.transpose(-1, -2)
    return median_us(x.device, lambda: torch.bmm(x, right), REPEAT), product, casts


def rows_of(heads: int, texts: int, length: int, neurons: int, device: torch.device) -> list[Row]:
    groups, kinds = heads * texts, Kinds(device, *3 * (torch.bfloat16,))
    numbers = fp8.Recipe(recipe="delayed", select="always").numbers
    generator = torch.Generator(device).manual_seed(1)
    codes = torch.randn(groups, length, neurons, device=device, dtype=torch.bfloat16, generator=generator)
    grads = torch.randn(groups, length, length, device=device, dtype=torch.bfloat16, generator=generator)
    scores = cached_layer(
        kinds, numbers, Shape(groups, length, neurons, length, False, False, False), FORWARD
    )
    back = cached_layer(kinds, numbers, Shape(groups, length, length, neurons, False, False, True), FORWARD)
    return [
        Row("scores: codes with themselves", *times(scores, codes, codes, shared=True)),
        Row("their gradient with the codes", *times(back, grads, codes, shared=False)),
    ]


CELLS = {
    "matmul": lambda row: row.product,
    "bf16 us": lambda row: f"{row.plain_us:.0f}",
    "FP8 us": lambda row: f"{row.fp8_us:.0f}",
    "casts us": lambda row: f"{row.casts_us:.0f}",
    "bf16 / FP8 with casts": lambda row: f"{row.ratio:.2f}",
}


def run(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = option_parser(__doc__)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--neurons", type=int, default=16384, help="neurons of a head")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    device = torch.empty(0, device=options.device).device
    found = rows_of(options.heads, options.texts, options.length, options.neurons, device)
    if options.json:
        print(json.dumps([asdict(row) | {"ratio": row.ratio} for row in found]))
    else:
        print(harness.table(found, CELLS))
    return found


if __name__ == "__main__":
    run()
