"""Triad and 6bit once more, from their definitions: in double, with how far fp32 arithmetic may be from it.

Every bound is of first order in UNIT, half a unit in the last place of fp32: an operation rounds once, a
constant is rounded once.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

UNIT = 2.0**-24
BLOCK = 128
GRIDS = {"first": (np.arange(64) - 31) / 32, "second": (np.arange(64) + 1) / 64}

Doubles = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Near:
    """What was computed, and how far fp32 may be from it."""

    value: Doubles
    error: Doubles


@dataclasses.dataclass(frozen=True)
class Triad:
    lr: float = 1e-3
    betas: tuple[float, float, float] = (0.9, 0.999, 0.99)
    alpha: float = 0.5
    eps: float = 1e-8
    weight_decay: float = 0.0

    def moments(self, g: Doubles, before: dict[str, Doubles]) -> dict[str, Near]:
        """The three moments after a step."""
        terms = {"fast_avg": (self.betas[0], g, 1), "exp_avg_sq": (self.betas[1], g * g, 2)}
        terms["slow_avg"] = (self.betas[2], g, 1)
        found = {}
        for name, (beta, new, operations) in terms.items():
            old, new = beta * before[name], (1 - beta) * new
            rounded = np.abs(old) + (1 + operations) * np.abs(new) + np.abs(old + new)
            found[name] = Near(old + new, UNIT * rounded)
        return found

    def direction(self, moments: dict[str, Near]) -> Near:
        fast, slow, second = (moments[name] for name in ("fast_avg", "slow_avg", "exp_avg_sq"))
        top = fast.value + self.alpha * slow.value
        top_error = fast.error + self.alpha * slow.error
        top_error += UNIT * (np.abs(self.alpha * slow.value) + np.abs(top))
        root = np.sqrt(second.value)
        bottom = root + self.eps
        bottom_error = second.error / (2 * root) + UNIT * (root + self.eps + bottom)
        value = top / bottom
        return Near(value, (top_error + np.abs(value) * bottom_error) / bottom + UNIT * np.abs(value))

    def param(self, p: Doubles, direction: Near) -> Near:
        """The second pass: the direction scaled to the norm of the weights. Sums are taken in double."""
        ratio = np.linalg.norm(p) / np.linalg.norm(direction.value)
        ratio_error = np.linalg.norm(direction.error) / np.linalg.norm(direction.value) + UNIT
        kept, rate = p * (1 - self.lr * self.weight_decay), self.lr * ratio
        value = kept - rate * direction.value
        moved = rate * (direction.error + (2 * UNIT + ratio_error) * np.abs(direction.value))
        return Near(value, moved + UNIT * (2 * np.abs(kept) + np.abs(value)))


def decoded(codes: npt.NDArray[np.uint8], scales: Doubles, moment: str, count: int) -> Doubles:
    """6bit: eight codes in six bytes, the first in the highest bits."""
    bits = np.unpackbits(codes)[: 6 * count].reshape(count, 6)
    values: Doubles = GRIDS[moment][bits @ (1 << np.arange(5, -1, -1))]
    return values * np.repeat(scales, BLOCK)[:count]


def distance_to_grid(near: Near, moment: str) -> Doubles:
    """How far a stored value may be from what it stores: to the nearest value of the grid, and fp32's own
    rounding of moment and scale.
    """
    found = np.empty_like(near.value)
    for at in range(0, near.value.size, BLOCK):
        values, errors = near.value[at : at + BLOCK], near.error[at : at + BLOCK]
        scale = np.abs(values).max()
        nearest = np.abs(values[:, None] - scale * GRIDS[moment]).min(axis=1)
        found[at : at + BLOCK] = nearest + 2 * errors + 2 * errors.max() + 8 * UNIT * scale
    return found
