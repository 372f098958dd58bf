"""How much faster the products with weights are in FP8, by the times that a run has measured and logged.

A run with `select: measure` logs a line for each shape of products: each pass's time both ways, and the
casts. The products of a step are put together from these: those with a weight per head are of a layer, and
made once in each; the others are made once. With gradient checkpointing a forward is made twice, and with it
the cast of x. A weight is cast once per step. All casts count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

_PASS = re.compile(r"(forward|dgrad|wgrad) (fp8|plain) \(([\d.]+) us in fp8, ([\d.]+) plain\)")
_CASTS = re.compile(r"casts of x ([\d.]+), w ([\d.]+), dy ([\d.]+) us")
_GROUPS = re.compile(r"fp8: \d+ x \[")


@dataclass(frozen=True)
class Measured:
    """A line of the log: microseconds."""

    per_layer: bool
    plain: dict[str, float]
    chosen: dict[str, float]  # of the kind that the run takes
    fp8: frozenset[str]  # the passes in FP8
    casts: tuple[float, float, float]  # of x, w and dy, both orientations


def read(message: str) -> Measured | None:
    """None: a line about something else."""
    passes, casts = _PASS.findall(message), _CASTS.search(message)
    if len(passes) != 3 or casts is None:
        return None
    return Measured(
        per_layer=_GROUPS.match(message) is not None,
        plain={name: float(plain) for name, _, _, plain in passes},
        chosen={name: float(fp8 if kind == "fp8" else plain) for name, kind, fp8, plain in passes},
        fp8=frozenset(name for name, kind, _, _ in passes if kind == "fp8"),
        casts=tuple(map(float, casts.groups())),  # type: ignore[arg-type]
    )


def gain(messages: Iterable[str], layers: int, checkpointing: bool) -> float:
    """Time without FP8 over time with it, casts included; not a number where nothing was measured."""
    before = after = 0.0
    for product in filter(None, map(read, messages)):
        uses, forwards = layers if product.per_layer else 1, 2 if checkpointing else 1
        often = {"forward": forwards, "dgrad": 1, "wgrad": 1}
        before += uses * sum(often[name] * us for name, us in product.plain.items())
        after += uses * sum(often[name] * us for name, us in product.chosen.items())
        x, w, dy = product.casts
        if product.fp8 & {"forward", "wgrad"}:
            after += uses * forwards * x
        if product.fp8 & {"dgrad", "wgrad"}:
            after += uses * dy
        if product.fp8 & {"forward", "dgrad"}:
            after += w
    return before / after if after else math.nan
