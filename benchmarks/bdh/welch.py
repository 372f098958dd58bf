"""Compares two means whose runs are not paired, with Welch's t interval."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from convergence_parts import tost

LEVEL = 0.95
WITHIN, LOWER, HIGHER = "within seed noise", "lower", "higher"
TOO_FEW, DIVERGED = "too few seeds", "diverged"


@dataclass(frozen=True)
class Difference:
    mean: float  # NaN if a run diverged or there is no run
    low: float
    high: float
    verdict: str


def compare(mine: Sequence[float], reference: Sequence[float]) -> Difference:
    """Returns "within seed noise" if the 95% interval of the difference of the means contains zero."""
    if not all(math.isfinite(loss) for loss in (*mine, *reference)):
        return Difference(math.nan, math.nan, math.nan, DIVERGED)
    mean = statistics.fmean(mine) - statistics.fmean(reference) if mine and reference else math.nan
    if len(mine) < 2 or len(reference) < 2:
        return Difference(mean, math.nan, math.nan, TOO_FEW)
    parts = [statistics.variance(losses) / len(losses) for losses in (mine, reference)]
    half = 0.0
    if sum(parts) > 0:
        sizes = (len(mine), len(reference))
        degrees = sum(parts) ** 2 / sum(p**2 / (n - 1) for p, n in zip(parts, sizes, strict=True))
        half = tost.student_quantile(0.5 + LEVEL / 2, degrees) * math.sqrt(sum(parts))
    low, high = mean - half, mean + half
    return Difference(mean, low, high, LOWER if high < 0 else HIGHER if low > 0 else WITHIN)
