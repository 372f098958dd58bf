"""Would FP8 pay for the products of BDH's attention, in which no weight takes part?

A layer multiplies its rotated codes with themselves, [heads x texts, length, neurons], and backward the
gradient of these scores with the codes. Both factors are activations, so what FP8 gains must pay for casts
that nothing else uses. This times both products as torch makes them and in FP8, and the casts: the codes by
rows for the scores; the transposed codes and the gradient for the backward pass.

    PYTHONPATH=adapters/python python benchmarks/fp8_attention.py [--texts 32] [--neurons 16384] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import harness  # first: it finds the package of this tree
import torch
from octavo import fp8
from octavo.fp8.layer_cache import FORWARD, Kinds, Layer, Shape, W, X, cached_layer
from stopwatch import Stopwatch


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


def median_us(device: torch.device, work: Callable[[], Any]) -> float:
    watch = Stopwatch(device)
    for turn in range(9):
        work() if turn < 2 else watch.time(work)
    return 1e3 * statistics.median(watch.ms())


def times(layer: Layer, x: torch.Tensor, w: torch.Tensor, shared: bool) -> tuple[float, float, float]:
    """Times the matmul x . w of torch, the FP8 matmul, and the casts; `shared`: x and w have one cast."""
    states = torch.ones(3, 2 + layer.numbers.length, dtype=torch.float32, device=x.device)
    stream, pairs = layer.stream(), [layer.empty_pair(operand) for operand in (X, W)]
    casts = 0.0
    for operand, source in ((X, x), (W, w)):
        _, rows, transposed = pairs[operand]

        def cast(o: int = operand, s: torch.Tensor = source, r: int = rows, t: int = transposed) -> None:
            layer.cast(o, s, r, t, states.data_ptr(), True, stream)

        us = median_us(x.device, cast)
        casts += 0.0 if shared and operand == W else us
    codes = (pairs[X][1], pairs[W][1], 0)
    product = median_us(x.device, lambda: layer.matmul(0, codes, (0, 0, 0), stream))
    right = w if layer.shape.transposed_weight else w.transpose(-1, -2)
    return median_us(x.device, lambda: torch.bmm(x, right)), product, casts


def rows_of(heads: int, texts: int, length: int, neurons: int, device: torch.device) -> list[Row]:
    groups, kinds = heads * texts, Kinds(device, *3 * (torch.bfloat16,))
    numbers = fp8.Recipe(recipe="delayed", select="always").numbers
    chance = torch.Generator(device).manual_seed(1)
    codes = torch.randn(groups, length, neurons, device=device, dtype=torch.bfloat16, generator=chance)
    grads = torch.randn(groups, length, length, device=device, dtype=torch.bfloat16, generator=chance)
    scores = cached_layer(
        kinds, numbers, Shape(groups, length, neurons, length, False, False, False), FORWARD
    )
    back = cached_layer(kinds, numbers, Shape(groups, length, length, neurons, False, False, True), FORWARD)
    return [
        Row("scores: codes with themselves", *times(scores, codes, codes, shared=True)),
        Row("their gradient with the codes", *times(back, grads, codes, shared=False)),
    ]


def run(arguments: Sequence[str] | None = None) -> list[Row]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--neurons", type=int, default=16384, help="of a head")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    found = rows_of(
        given.heads, given.texts, given.length, given.neurons, torch.empty(0, device=given.device).device
    )
    if given.json:
        print(json.dumps([asdict(row) | {"ratio": row.ratio} for row in found]))
        return found
    header = ["product", "bf16 us", "FP8 us", "casts us", "bf16 / FP8 with casts"]
    lines = [
        [row.product, f"{row.plain_us:.0f}", f"{row.fp8_us:.0f}", f"{row.casts_us:.0f}", f"{row.ratio:.2f}"]
        for row in found
    ]
    print(harness.table(header, lines))
    return found


if __name__ == "__main__":
    run()
