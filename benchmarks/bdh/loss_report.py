"""Reports the final losses of the arms and of the reference: the table, remarks, and the plot."""

from __future__ import annotations

import json
import math
import pathlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import run_folder
import welch
from convergence_parts import panels_svg, records
from octavo_runs import ARMS, SETTINGS, Task

PALETTE = ("#0072b2", "#009e73", "#e69f00", "#d55e00", "#7a5cc0", "#56b4e9")
RATE_TOLERANCE = 0.02  # share of the highest rate


@dataclass(frozen=True)
class Curve:
    """A finished run of Octavo or of the reference."""

    arm: str
    seed: int
    loss: float
    validation: dict[int, float]
    rates: dict[int, float]


def octavo_curves(runs: pathlib.Path, seeds: int) -> list[Curve]:
    found = []
    for task in (Task(arm, seed) for arm in ARMS for seed in range(seeds)):
        run = run_folder.read(runs / task.name)
        if run.done:
            found.append(Curve(task.arm, task.seed, run.loss, run.validation, run.rates))
    return found


def reference_curves(path: pathlib.Path, runs: pathlib.Path) -> list[Curve]:
    """Reads the results of reference.py, which must have the settings of the folder of runs."""
    known, found = records.load(path), []
    given = json.loads((runs / SETTINGS).read_text())
    del given["extra"]
    records.check_settings(path, known, given, "--reference-results")
    for record in known:
        losses = [math.nan if loss is None else loss for loss in record["validation"]]
        by_step = dict(zip(record["steps"], losses, strict=True))
        rates = dict(zip(record["steps"], record["rates"], strict=True))
        found.append(Curve(record["arm"], int(record["seed"]), losses[-1], by_step, rates))
    return found


@dataclass(frozen=True)
class Row:
    arm: str
    losses: list[float]
    difference: welch.Difference | None  # None for the arm that the others are compared with


def rows(curves: Sequence[Curve], against: str) -> list[Row]:
    """Returns a row for each arm: first the one that the others are compared with, then in their order."""
    arms = list(dict.fromkeys(curve.arm for curve in curves))
    if against not in arms:
        raise ValueError(f"no finished run of {against!r}; finished arms: {', '.join(arms) or 'none'}")
    losses = {arm: [curve.loss for curve in curves if curve.arm == arm] for arm in arms}
    others = [Row(arm, losses[arm], welch.compare(losses[arm], losses[against])) for arm in arms]
    return [Row(against, losses[against], None), *(row for row in others if row.arm != against)]


def table(found: Sequence[Row]) -> str:
    head = f"| arm | seeds | mean loss | sd | difference to {found[0].arm} | 95% interval | |"
    lines = [head, "|---" * 7 + "|"]
    for row in found:
        finite = all(map(math.isfinite, row.losses))
        mean = f"{statistics.fmean(row.losses):.4f}" if finite else "n/a"
        sd = f"{statistics.stdev(row.losses):.4f}" if finite and len(row.losses) > 1 else "n/a"
        cells = [row.arm, str(len(row.losses)), mean, sd, "", "", ""]
        if row.difference is not None:
            d = row.difference
            interval = "n/a" if math.isnan(d.low) else f"{d.low:+.4f} to {d.high:+.4f}"
            part = f" ({100 * d.mean / statistics.fmean(found[0].losses):+.2f}%)"
            cells[4:] = ["n/a" if math.isnan(d.mean) else f"{d.mean:+.4f}{part}", interval, d.verdict]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def remarks(curves: Sequence[Curve], against: str) -> list[str]:
    """Returns the arms whose learning rates or number of steps differ from the reference's."""
    reference = next(curve for curve in curves if curve.arm == against)
    allowed = RATE_TOLERANCE * max(reference.rates.values(), default=math.inf)
    lines = []
    for arm in dict.fromkeys(curve.arm for curve in curves):
        mine = next(curve for curve in curves if curve.arm == arm)
        shared = mine.rates.keys() & reference.rates.keys()
        off = [s for s in shared if abs(mine.rates[s] - reference.rates[s]) > allowed]
        if off:
            s = min(off)
            pair = f"{mine.rates[s]:g} where {against} has {reference.rates[s]:g}"
            lines.append(f"{arm}: the learning rate of step {s} is {pair}: the runs do not compare.")
        if max(mine.validation, default=0) != max(reference.validation, default=0):
            last = f"{max(mine.validation, default=0)} and {max(reference.validation, default=0)}"
            lines.append(f"{arm}: last evaluated at another step than {against} ({last}).")
    return lines


def mean_curve(curves: Sequence[Curve], arm: str) -> dict[int, float]:
    """Returns the mean over the seeds, at the steps that all seeds have."""
    mine = [curve.validation for curve in curves if curve.arm == arm]
    steps = set.intersection(*(set(curve) for curve in mine))
    return {step: statistics.fmean(curve[step] for curve in mine) for step in sorted(steps)}


def svg(curves: Sequence[Curve], found: Sequence[Row]) -> str:
    """Draws the mean validation losses, and below them the differences with their last intervals."""
    p, spare = panels_svg, iter(PALETTE)
    styles = {found[0].arm: p.Style("#222222", "5 3")}
    styles |= {row.arm: p.Style(next(spare, "#000000")) for row in found[1:]}
    means = {arm: mean_curve(curves, arm) for arm in styles}
    reference = means[found[0].arm]
    if not any(map(math.isfinite, reference.values())):
        raise ValueError(f"{found[0].arm} has no finite loss to plot")
    losses = p.loss_range(reference.values(), (loss for curve in means.values() for loss in curve.values()))
    ends = [abs(v) for row in found if row.difference for v in (row.difference.low, row.difference.high)]
    reach = 1.25 * max([0.01, *(v for v in ends if math.isfinite(v))])
    labels = {"validation loss, nats": ".3g", "difference": "+.3g"}
    (upper, lower), parts = p.column(p.LEFT, max(reference), [losses, (-reach, reach)], labels)
    for arm, style in styles.items():
        parts.append(p.line(upper, means[arm].keys(), means[arm].values(), style, "panel0"))
        shared = [step for step in means[arm] if step in reference]
        differences = [means[arm][step] - reference[step] for step in shared]
        parts.append(p.line(lower, shared, differences, style, "panel1"))
    for place, row in enumerate(row for row in found if row.difference):
        d = row.difference
        if d is not None and d.verdict != welch.TOO_FEW:
            parts += p.interval(lower, place, (d.low, d.high), d.mean, styles[row.arm].colour)
    return p.document(parts, styles, 1)
