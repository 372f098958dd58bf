"""Tests the equivalence of paired losses: two one-sided tests at a margin (TOST).

Equivalent at margin d and level 5% means that the 90% confidence interval of the mean paired difference
lies inside (-d, d). An interval outside shows a difference larger than d. An interval that exceeds the margin
only towards lower losses still shows that nothing is lost.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.05
PIECES = 1000  # pieces of an integral; even
FEWEST = 3  # pairs; two give Student's t one degree of freedom and a useless interval


def student_cdf(t: float, degrees: float) -> float:
    """Returns P(T <= t) for at least 1 degree of freedom, which need not be an integer (Welch's is not).

    With t = sqrt(degrees) tan(x) the density is c cos(x)^(degrees - 1), integrated by Simpson's rule.
    """
    angle = math.atan(t / math.sqrt(degrees))
    scale = math.exp(math.lgamma((degrees + 1) / 2) - math.lgamma(degrees / 2)) / math.sqrt(math.pi)
    width = angle / PIECES
    ends = 1.0 + math.cos(angle) ** (degrees - 1)
    inner = sum((4 if k % 2 else 2) * math.cos(k * width) ** (degrees - 1) for k in range(1, PIECES))
    return float(0.5 + scale * width / 3 * (ends + inner))


def student_quantile(probability: float, degrees: float) -> float:
    """Returns the t whose cdf is `probability` (at least one half), by bisection."""
    low, high = 0.0, 1.0
    while student_cdf(high, degrees) < probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, degrees) < probability else (low, middle)
    return (low + high) / 2


@dataclass(frozen=True)
class Comparison:
    pairs: int
    mean: float  # mean difference; NaN without pairs or if a run diverged
    low: float
    high: float
    verdict: str


def compare(differences: Sequence[float], margin: float) -> Comparison:
    """Returns equivalent, worse or better (than the margin), not worse, not shown, too few, or diverged."""
    n = len(differences)
    if n and not all(math.isfinite(d) for d in differences):
        return Comparison(n, math.nan, math.nan, math.nan, "diverged")
    mean = statistics.fmean(differences) if n else math.nan
    if n < FEWEST:
        return Comparison(n, mean, math.nan, math.nan, "too few")
    half = student_quantile(1 - LEVEL, n - 1) * statistics.stdev(differences) / math.sqrt(n)
    low, high = mean - half, mean + half
    if -margin < low and high < margin:
        verdict = "equivalent"
    elif low >= margin:
        verdict = "worse"
    elif high <= -margin:
        verdict = "better"
    elif high < margin:
        verdict = "not worse"
    else:
        verdict = "not shown"
    return Comparison(n, mean, low, high, verdict)
