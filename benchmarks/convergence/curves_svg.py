"""Draws the plot of the convergence benchmark.

It has a column for each beta2. Above: mean validation loss of each arm. Below: mean paired difference from
the reference, with the margin as a band and the 90% interval of the last point as a bar on the right.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import summary
from arms import BAD, NULL, REFERENCE
from panels_svg import (
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Panel,
    Style,
    column,
    document,
    interval,
    line,
    loss_range,
    text,
)
from records import Record

COLOURS = {
    REFERENCE: "#222222",
    NULL: "#8a8a8a",
    "8bit": "#0072b2",
    "fp8": "#009e73",
    "4bit": "#d55e00",
    BAD: "#cc3377",
}
SPARE = ("#56b4e9", "#e69f00", "#7a5cc0", "#6b4c1e", "#94a000")
DASHES = {NULL: "5 3", BAD: "2 3"}

Styles = dict[str, Style]


def _column(
    number: int,
    beta2: float,
    records: Sequence[Record],
    found: Sequence[summary.Row],
    margin: float,
    styles: Styles,
) -> list[str]:
    """Returns the two panels of one beta2; nothing if the reference has no run."""
    curves = {arm: summary.mean_curve(records, arm, beta2) for arm in styles}
    steps, reference = curves.get(REFERENCE, ([], []))
    if not any(map(math.isfinite, reference)):
        return []
    x0 = LEFT + number * (WIDTH + LEFT + RIGHT)
    losses = loss_range(reference, (value for _, means in curves.values() for value in means))
    labels = {"validation loss, nats": ".3g", "difference to fp32": "+.3g"}
    name = f"column{number}row"
    (upper, lower), frames = column(x0, steps[-1], [losses, (-4 * margin, 4 * margin)], labels, name)
    box = f'width="{WIDTH}" height="{lower.y(-margin) - lower.y(margin):.1f}"'
    parts = [
        text(x0 + WIDTH / 2, TOP - 12, f"beta2 = {beta2:g}", more=' font-weight="bold"'),
        f'<rect x="{x0}" y="{lower.y(margin):.1f}" {box} fill="#e8f3e8"/>',
        *frames,
    ]
    for arm, style in styles.items():
        parts.append(line(upper, *curves[arm], style, f"{name}0"))
        if arm != REFERENCE:
            parts.append(line(lower, *summary.mean_difference(records, arm, beta2), style, f"{name}1"))
    return parts + _intervals(lower, [row for row in found if row.beta2 == beta2], styles)


def svg(records: Sequence[Record], found: Sequence[summary.Row], margin: float) -> str:
    """Returns the file."""
    betas = sorted({row.beta2 for row in found})
    spare = iter(SPARE)
    styles = {
        arm: Style(COLOURS.get(arm) or next(spare, "#000000"), DASHES.get(arm, ""))
        for arm in sorted({row.arm for row in found}, key=summary.rank)
    }
    parts = [
        part
        for number, beta2 in enumerate(betas)
        for part in _column(number, beta2, records, found, margin, styles)
    ]
    return document(parts, {summary.LABELS.get(arm, arm): s for arm, s in styles.items()}, len(betas))


def _intervals(panel: Panel, found: Iterable[summary.Row], styles: Styles) -> list[str]:
    """Draws the 90% interval of each arm's last difference; a run that diverged has an arrow."""
    parts: list[str] = []
    shown = [row for row in found if row.comparison is not None and row.comparison.verdict != "too few"]
    for place, row in enumerate(shown):
        c = row.comparison
        assert c is not None
        parts += interval(panel, place, (c.low, c.high), c.mean, styles[row.arm].colour)
    return parts
