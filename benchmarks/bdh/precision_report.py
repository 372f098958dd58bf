"""What a precision of products and states gives: memory of the model and of the optimizer apart, speed, loss.

A row per arm, one after the other in one call; speeds are also relative to the first of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import product_gain
import run_folder
from speed_report import Octavo, Timing, timing_of

ARMS = ("fp32", "bf16 adamw", "bf16 adamw_8bit", "fp8 adamw", "fp8 adamw_4bit")
HEAD = (
    "| | model GB | optimizer GB | peak GB | tokens/s | relative | products | loss |\n"
    "|---|---|---|---|---|---|---|---|"
)
MODEL = ("params", "master", "fp8")  # weights, the bits that bf16 ones lack, and their FP8 codes


@dataclass(frozen=True)
class Row:
    timing: Timing
    owners: dict[str, int] = field(default_factory=dict)
    loss: float = math.nan
    products: float = math.nan  # how much faster those with weights are in FP8, casts included

    def line(self, first: Timing) -> str:
        t = self.timing
        if t.error:
            return f"| {t.side} | {t.error} | | | | | | |"
        model = sum(self.owners.get(owner, 0) for owner in MODEL) / 1e9
        peak = "" if t.peak_gb is None else f"{t.peak_gb:.2f}"
        speed = f"{t.tokens_per_second:.0f} | {t.tokens_per_second / first.tokens_per_second:.2f}"
        states = self.owners.get("states", 0) / 1e9
        products = "" if math.isnan(self.products) else f"{self.products:.2f}"
        return f"| {t.side} | {model:.3f} | {states:.3f} | {peak} | {speed} | {products} | {self.loss:.4f} |"


def row_of(arm: str, run: run_folder.Run, ours: Octavo, checkpointing: bool) -> Row:
    products = product_gain.gain(run.fp8, ours.settings.n_layer, checkpointing)
    return Row(timing_of(arm, run, ours.warm_up), run.owners, run.loss, products)


def measure(ours: Octavo, arm: str, checkpointing: bool) -> Row:
    run, error = ours.run(arm, arm, checkpointing)
    return Row(Timing(arm, error=error)) if error else row_of(arm, run, ours, checkpointing)
