"""Reports a precision of matmuls and states: memory of model and optimizer, speed, loss.

It has a row for each arm, run one after another in one call. Speeds are also relative to the first arm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import product_gain
import run_folder
from speed_report import Octavo, Timing, timing_of

ARMS = ("fp32", "bf16 adamw", "bf16 adamw_8bit", "fp8 adamw", "fp8 adamw_4bit")
HEAD = (
    "| | model GB | optimizer GB | peak GB | tokens/s | relative | FP8 matmul speedup | loss |\n"
    "|---|---|---|---|---|---|---|---|"
)
MODEL = ("params", "master", "fp8")  # weights, the missing bits of bf16 weights, and FP8 codes


@dataclass(frozen=True)
class Row:
    timing: Timing
    owners: dict[str, int] = field(default_factory=dict)
    loss: float = math.nan
    speedup: float = math.nan  # bf16 time of the matmuls with weights divided by FP8 time with casts

    def line(self, first: Timing) -> str:
        t = self.timing
        if t.error:
            return f"| {t.side} | {t.error} | | | | | | |"
        model = sum(self.owners.get(owner, 0) for owner in MODEL) / 1e9
        peak = "" if t.peak_gb is None else f"{t.peak_gb:.2f}"
        speed = f"{t.tokens_per_second:.0f} | {t.tokens_per_second / first.tokens_per_second:.2f}"
        states = self.owners.get("states", 0) / 1e9
        speedup = "" if math.isnan(self.speedup) else f"{self.speedup:.2f}"
        return f"| {t.side} | {model:.3f} | {states:.3f} | {peak} | {speed} | {speedup} | {self.loss:.4f} |"


def row_of(arm: str, run: run_folder.Run, ours: Octavo, checkpointing: bool) -> Row:
    speedup = product_gain.gain(run.fp8, ours.settings.n_layer, checkpointing)
    return Row(timing_of(arm, run, ours.warm_up), run.owners, run.loss, speedup)


def measure(ours: Octavo, arm: str, checkpointing: bool) -> Row:
    run, error = ours.run(arm, arm, checkpointing)
    return Row(Timing(arm, error=error)) if error else row_of(arm, run, ours, checkpointing)
