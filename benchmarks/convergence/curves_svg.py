"""The plot of the convergence benchmark: an SVG file of plain lines, written without a library.

A column per beta2. Above: mean validation loss of each arm. Below: mean paired difference to the reference,
with the margin as a band and the 90% interval of the last point as a bar on the right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

import summary
from arms import BAD, NULL, REFERENCE
from records import Record

COLOURS = {
    REFERENCE: "#222222",
    NULL: "#8a8a8a",
    "8bit": "#0072b2",
    "fp8": "#009e73",
    "4bit": "#d55e00",
    BAD: "#cc3377",
}
SPARE = ("#56b4e9", "#e69f00", "#7a5cc0", "#6b4c1e")
DASHES = {NULL: "5 3", BAD: "2 3"}
WIDTH, LEFT, TOP, GAP, RIGHT, BOTTOM = 430, 66, 34, 78, 60, 60
HEIGHT = 210


@dataclass
class Panel:
    """A box with its scales."""

    x0: float
    y0: float
    width: float
    height: float
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: float) -> float:
        low, high = self.x_range
        return self.x0 + self.width * (value - low) / (high - low)

    def y(self, value: float) -> float:
        low, high = self.y_range
        return self.y0 + self.height * (high - value) / (high - low)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers in the range: steps of 1, 2 or 5 times a power of ten."""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next(k for k in (1, 2, 5, 10) if (high - low) / (step * k) <= most)
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def _frame(panel: Panel, label: str, form: Callable[[float], str]) -> list[str]:
    p = panel
    parts = [f'<rect x="{p.x0}" y="{p.y0}" width="{p.width}" height="{p.height}" fill="none" stroke="#999"/>']
    for value in ticks(*p.y_range):
        y = p.y(value)
        parts.append(f'<path d="M{p.x0} {y:.1f}h{p.width}" stroke="#ddd"/>')
        parts.append(_text(p.x0 - 6, y + 4, form(value), "end"))
    for value in ticks(*p.x_range):
        parts.append(_text(p.x(value), p.y0 + p.height + 15, f"{value:g}"))
    parts.append(_text(p.x0 + p.width / 2, p.y0 + p.height + 31, "step"))
    middle = p.y0 + p.height / 2
    parts.append(_text(p.x0 - 50, middle, label, more=f' transform="rotate(-90 {p.x0 - 50} {middle})"'))
    return parts


def _line(panel: Panel, steps: Iterable[float], values: Iterable[float], style: str, clip: str) -> str:
    points = [(panel.x(s), panel.y(v)) for s, v in zip(steps, values, strict=True) if math.isfinite(v)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" {style} clip-path="url(#{clip})"/>'


@dataclass
class Style:
    colour: str
    dash: str

    @property
    def stroke(self) -> str:
        dashes = f' stroke-dasharray="{self.dash}"' if self.dash else ""
        return f'stroke="{self.colour}" stroke-width="1.6"{dashes}'


Styles = dict[str, Style]


def _column(
    number: int,
    beta2: float,
    records: Sequence[Record],
    found: Sequence[summary.Row],
    margin: float,
    styles: Styles,
) -> list[str]:
    """The two panels of one beta2; nothing where the reference has no run."""
    x0 = LEFT + number * (WIDTH + LEFT + RIGHT)
    curves = {arm: summary.mean_curve(records, arm, beta2) for arm in styles}
    steps, reference = curves.get(REFERENCE, ([], []))
    if not any(map(math.isfinite, reference)):
        return []
    # The first tenth of the training would take most of the height.
    high = reference[min(len(reference) // 10, len(reference) - 1)]
    low = min(value for _, means in curves.values() for value in means if math.isfinite(value))
    room = 0.06 * (high - low) + 0.01
    upper = Panel(x0, TOP, WIDTH, HEIGHT, (0, steps[-1]), (low - room, high + room))
    lower = Panel(x0, TOP + HEIGHT + GAP, WIDTH, HEIGHT, (0, steps[-1]), (-4 * margin, 4 * margin))
    box = f'width="{WIDTH}" height="{lower.y(-margin) - lower.y(margin):.1f}"'
    parts = [
        _text(x0 + WIDTH / 2, TOP - 12, f"beta2 = {beta2:g}", more=' font-weight="bold"'),
        f'<rect x="{x0}" y="{lower.y(margin):.1f}" {box} fill="#e8f3e8"/>',
        *_frame(upper, "validation loss, nats", lambda value: f"{value:.3g}"),
        *_frame(lower, "difference to fp32", lambda value: f"{value:+.3g}"),
    ]
    for name, panel in (("upper", upper), ("lower", lower)):
        box = f'x="{panel.x0}" y="{panel.y0}" width="{panel.width}" height="{panel.height}"'
        parts.append(f'<clipPath id="{name}{number}"><rect {box}/></clipPath>')
    for arm, style in styles.items():
        parts.append(_line(upper, *curves[arm], style.stroke, f"upper{number}"))
        if arm != REFERENCE:
            difference = summary.mean_difference(records, arm, beta2)
            parts.append(_line(lower, *difference, style.stroke, f"lower{number}"))
    return parts + _intervals(lower, [row for row in found if row.beta2 == beta2], styles)


def svg(records: Sequence[Record], found: Sequence[summary.Row], margin: float) -> str:
    """The whole file."""
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
    bottom, x = TOP + 2 * HEIGHT + GAP + BOTTOM, float(LEFT)
    for arm, style in styles.items():
        label = summary.LABELS.get(arm, arm)
        parts.append(f'<path d="M{x:.0f} {bottom - 4}h24" {style.stroke}/>')
        parts.append(_text(x + 30, bottom, label, "start"))
        x += 52 + 6.4 * len(label)
    width = max(x, len(betas) * (WIDTH + LEFT + RIGHT))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {bottom + 16}" '
        'font-family="sans-serif" font-size="12" fill="#222">'
    )
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>"]) + "\n"


def _intervals(panel: Panel, found: Iterable[summary.Row], styles: Styles) -> list[str]:
    """The 90% interval of each arm's last difference, beside the panel; an arrow where it is outside."""
    parts = []
    low_end, high_end = panel.y_range
    x = panel.x0 + panel.width + 8
    for row in found:
        c = row.comparison
        if c is None or c.verdict == "too few":
            continue
        colour = styles[row.arm].colour
        above = c.verdict == "diverged" or c.low > high_end
        if above or c.high < low_end:
            y, turn = (panel.y0, 6) if above else (panel.y0 + panel.height, -6)
            parts.append(
                f'<path d="M{x - 3:.1f} {y + turn}l3 {-turn}l3 {turn}" fill="none" stroke="{colour}"/>'
            )
        else:
            ends = [panel.y(min(max(v, low_end), high_end)) for v in (c.high, c.low)]
            parts.append(
                f'<path d="M{x:.1f} {ends[0]:.1f}V{ends[1]:.1f}" stroke="{colour}" stroke-width="2"/>'
            )
            if low_end < c.mean < high_end:
                parts.append(f'<circle cx="{x:.1f}" cy="{panel.y(c.mean):.1f}" r="2.6" fill="{colour}"/>')
        x += 9
    return parts
