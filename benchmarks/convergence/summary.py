"""Summarizes finished runs of the convergence benchmark: comparisons with fp32, a table, remarks, curves.

Runs are paired by (beta2, seed). A pair whose initial weights or data differ is an error, because it would
compare something else.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from arms import ARMS, BAD, NULL, REFERENCE
from records import Record, finite, key_of
from tost import Comparison, compare

LABELS = {
    REFERENCE: "fp32 (reference)",
    NULL: "torch fused AdamW (null)",
    BAD: "4-bit v with a zero code (known bad)",
}


@dataclass(frozen=True)
class Row:
    arm: str
    beta2: float
    runs: int  # seeds that the reference has too
    mean_loss: float
    comparison: Comparison | None  # None for the reference

    def as_dict(self) -> dict[str, Any]:
        row = asdict(self)
        return finite({**row, **(row.pop("comparison") or {}), "caught": caught(self)})


def rank(arm: str) -> tuple[int, str]:
    order = [REFERENCE, NULL, *(a for a in ARMS if a not in (REFERENCE, NULL, BAD)), BAD]
    return (order.index(arm) if arm in order else len(order), arm)


def _loss(record: Record) -> float:
    """Returns NaN if the run diverged, that is, ended worse than guessing among all characters."""
    loss = record["loss"]
    return math.nan if loss is None or loss > math.log(record["settings"]["vocabulary"]) else float(loss)


def rows(records: Sequence[Record], margin: float) -> list[Row]:
    """Returns a row for each beta2 and arm, over the seeds that the reference has too."""
    runs: dict[tuple[float, str], dict[int, Record]] = {}
    for record in records:
        arm, seed, beta2 = key_of(record)
        runs.setdefault((beta2, arm), {})[seed] = record
    found = []
    for beta2, arm in sorted(runs, key=lambda pair: (pair[0], rank(pair[1]))):
        mine, reference = runs[beta2, arm], runs.get((beta2, REFERENCE), {})
        seeds = sorted(mine.keys() & reference.keys())
        for seed in seeds:
            for mark in ("init", "data"):
                if mine[seed][mark] != reference[seed][mark]:
                    raise ValueError(
                        f"arm {arm}, seed {seed}: {mark} differs from the reference's: not a pair"
                    )
        losses = [_loss(mine[seed]) for seed in seeds]
        differences = [_loss(mine[seed]) - _loss(reference[seed]) for seed in seeds]
        comparison = None if arm == REFERENCE else compare(differences, margin)
        mean = statistics.fmean(losses) if losses else math.nan
        found.append(Row(arm, beta2, len(seeds), mean, comparison))
    return found


def caught(row: Row) -> bool | None:
    """Returns True if the test does not call this arm as good as fp32; None if it has too few runs."""
    word = "too few" if row.comparison is None else row.comparison.verdict
    return None if word == "too few" else word not in ("equivalent", "better", "not worse")


def verdict(row: Row) -> str:
    word = "" if row.comparison is None else row.comparison.verdict
    if row.arm != BAD or caught(row) is None:
        return word
    return f"{word} (caught)" if caught(row) else f"{word} (**not caught**)"


def _number(value: float, form: str) -> str:
    return "n/a" if math.isnan(value) else format(value, form)


def table(found: Sequence[Row]) -> str:
    lines = ["| arm | beta2 | n | mean loss | mean difference | 90% interval | verdict |", "|---" * 7 + "|"]
    for row in found:
        cells = [LABELS.get(row.arm, row.arm), f"{row.beta2:g}", str(row.runs), _number(row.mean_loss, ".4f")]
        if row.comparison is None:
            cells += ["", "", ""]
        else:
            c = row.comparison
            interval = "n/a" if math.isnan(c.low) else f"{c.low:+.4f} to {c.high:+.4f}"
            cells += [_number(c.mean, "+.4f"), interval, verdict(row)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def remarks(found: Sequence[Row], records: Sequence[Record], margin: float) -> list[str]:
    """Explains the table, and reports whether the test can pass and fail and whether training overfitted."""
    lines = [
        f"Difference: to {REFERENCE} of the same seed, in nats per character. "
        f"Equivalent: its 90% interval lies inside ±{margin:g}; better: below -{margin:g}; not worse: below "
        f"+{margin:g}."
    ]
    for row in found:
        if row.arm == NULL and (row.comparison is None or row.comparison.verdict != "equivalent"):
            lines.append(
                f"The null arm is not shown equivalent at beta2 {row.beta2:g}: more seeds are needed."
            )
        if row.arm == BAD and caught(row) is not True:
            lines.append(f"The known-bad arm is not caught at beta2 {row.beta2:g}: the test shows nothing.")
    for beta2 in sorted({row.beta2 for row in found}):
        steps, means = mean_curve(records, REFERENCE, beta2)
        if not means:
            continue
        best = min(range(len(means)), key=means.__getitem__)
        text = f"beta2 {beta2:g}: fp32's validation loss is lowest at step {steps[best]} of {steps[-1]}"
        rise = means[-1] - means[best]
        lines.append(text + (f", and {rise:.4f} higher at the end." if best + 1 < len(means) else "."))
    return lines


def mean_curve(records: Sequence[Record], arm: str, beta2: float) -> tuple[list[int], list[float]]:
    """Returns the evaluation steps and the mean validation loss of an arm over its seeds."""
    mine = [r for r in records if (str(r["arm"]), float(r["beta2"])) == (arm, beta2)]
    if not mine:
        return [], []
    curves = [[math.nan if v is None else v for v in r["validation"]] for r in mine]
    return list(mine[0]["steps"]), [statistics.fmean(values) for values in zip(*curves, strict=True)]


def mean_difference(records: Sequence[Record], arm: str, beta2: float) -> tuple[list[int], list[float]]:
    """Returns the evaluation steps and the mean difference to the reference over the common seeds."""
    keys = [key_of(record) for record in records]
    seeds = {s for a, s, b in keys if (a, b) == (REFERENCE, beta2)}
    seeds &= {s for a, s, b in keys if (a, b) == (arm, beta2)}
    paired = [record for record in records if int(record["seed"]) in seeds]
    steps, mine = mean_curve(paired, arm, beta2)
    _, reference = mean_curve(paired, REFERENCE, beta2)
    return steps, [a - b for a, b in zip(mine, reference, strict=True)]
