"""Computes the FP8 speedup of the matmuls with weights, from the times that a run measured and logged.

A run with `select: measure` logs a line for each shape: the time of each pass's matmul in FP8 and without,
and of the casts. The matmuls of a step are the sum of these lines: a matmul with a weight per head occurs
once in each layer, the others once. With gradient checkpointing the forward matmul and the cast of x occur
twice. A weight is cast once per step. All casts count.
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
    """A line of the log; times in microseconds."""

    per_layer: bool
    plain: dict[str, float]
    chosen: dict[str, float]  # times of the kind that the run uses
    fp8: frozenset[str]  # the passes in FP8
    casts: tuple[float, float, float]  # x, w and dy, in both orientations


def read(message: str) -> Measured | None:
    """Returns None for a line about something else."""
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
    """Returns the time without FP8 divided by the time with it, casts included; NaN without measurements."""
    before = after = 0.0
    for matmul in filter(None, map(read, messages)):
        uses, forwards = layers if matmul.per_layer else 1, 2 if checkpointing else 1
        count = {"forward": forwards, "dgrad": 1, "wgrad": 1}
        before += uses * sum(count[name] * us for name, us in matmul.plain.items())
        after += uses * sum(count[name] * us for name, us in matmul.chosen.items())
        x, w, dy = matmul.casts
        if matmul.fp8 & {"forward", "wgrad"}:
            after += uses * forwards * x
        if matmul.fp8 & {"dgrad", "wgrad"}:
            after += uses * dy
        if matmul.fp8 & {"forward", "dgrad"}:
            after += w
    return before / after if after else math.nan
