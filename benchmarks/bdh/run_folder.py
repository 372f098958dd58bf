"""Reads metrics.jsonl of an `octavo train` run.

A run that was resumed has several "start" records. An "end" counts only if no "start" follows it.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
import statistics
from typing import Any

from convergence_parts import records

DONE = ("finished", "diverged")


@dataclasses.dataclass
class Run:
    validation: dict[int, float] = dataclasses.field(
        default_factory=dict
    )  # by step; NaN if the loss was not finite
    rates: dict[int, float] = dataclasses.field(default_factory=dict)
    speeds: dict[int, float] = dataclasses.field(default_factory=dict)  # tokens per second
    start: dict[str, Any] = dataclasses.field(default_factory=dict)
    peak_bytes: int | None = None  # peak of the device
    owners: dict[str, int] = dataclasses.field(default_factory=dict)  # bytes at the peak of a step
    overhead: float | None = None
    reason: str | None = None  # the reason of the end; None before the end
    fp8: list[str] = dataclasses.field(default_factory=list)  # lines of measurements and choices

    @property
    def done(self) -> bool:
        return self.reason in DONE

    @property
    def loss(self) -> float:
        """The loss of the last evaluation; NaN if the run diverged or had no evaluation."""
        if self.reason == "diverged" or not self.validation:
            return math.nan
        return self.validation[max(self.validation)]

    def tokens_per_second(self, warm_up: int) -> float:
        """Returns the median of the logged speeds after the warm-up."""
        later = [speed for step, speed in self.speeds.items() if step > warm_up and math.isfinite(speed)]
        return statistics.median(later) if later else math.nan

    def add(self, record: dict[str, Any]) -> None:
        kind, step = record["kind"], int(record["step"])
        if kind == "start":
            self.start, self.reason, self.overhead = record, None, None
        elif kind == "train":
            self.rates[step] = _number(record["lr"])
            self.speeds[step] = _number(record.get("tokens_per_second"))
            self._peak(record.get("memory", {}))
        elif kind == "eval":
            self.validation[step] = _number(record["loss"])
        elif kind == "memory":
            self._peak(record)
            self.owners = record.get("owners", {})
        elif kind == "fp8":
            self.fp8.append(record["message"])
        elif kind == "end":
            self.reason, self.overhead = record["reason"], record.get("overhead")

    def _peak(self, memory: dict[str, Any]) -> None:
        found = memory.get("device_peak")
        if found is not None:
            self.peak_bytes = max(self.peak_bytes or 0, int(found))


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def read(folder: pathlib.Path) -> Run:
    """Returns the run so far; an empty run if the folder has no metrics."""
    run, path = Run(), folder / "metrics.jsonl"
    for number, record in enumerate(records.load(path), start=1):
        try:
            run.add(record)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, record {number}: {error!r}: not a record of `octavo train`") from error
    return run
