"""Draws plots as SVG files without a library: panels with axes, curves, intervals, a legend."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, TOP, GAP, RIGHT, BOTTOM = 430, 66, 34, 78, 60, 60
HEIGHT = 210


@dataclass
class Panel:
    """A box with its axes."""

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


@dataclass
class Style:
    colour: str
    dash: str = ""

    @property
    def stroke(self) -> str:
        dashes = f' stroke-dasharray="{self.dash}"' if self.dash else ""
        return f'stroke="{self.colour}" stroke-width="1.6"{dashes}'


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Returns round numbers in the range: steps of 1, 2 or 5 times a power of ten."""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next(k for k in (1, 2, 5, 10) if (high - low) / (step * k) <= most)
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def frame(panel: Panel, label: str, form: str) -> list[str]:
    p = panel
    parts = [f'<rect x="{p.x0}" y="{p.y0}" width="{p.width}" height="{p.height}" fill="none" stroke="#999"/>']
    for value in ticks(*p.y_range):
        y = p.y(value)
        parts.append(f'<path d="M{p.x0} {y:.1f}h{p.width}" stroke="#ddd"/>')
        parts.append(text(p.x0 - 6, y + 4, format(value, form), "end"))
    for value in ticks(*p.x_range):
        parts.append(text(p.x(value), p.y0 + p.height + 15, f"{value:g}"))
    parts.append(text(p.x0 + p.width / 2, p.y0 + p.height + 31, "step"))
    middle = p.y0 + p.height / 2
    parts.append(text(p.x0 - 50, middle, label, more=f' transform="rotate(-90 {p.x0 - 50} {middle})"'))
    return parts


def clip(panel: Panel, name: str) -> str:
    """Defines a clip path: lines that use it end at the panel's edges."""
    box = f'x="{panel.x0}" y="{panel.y0}" width="{panel.width}" height="{panel.height}"'
    return f'<clipPath id="{name}"><rect {box}/></clipPath>'


def column(
    x0: float,
    last: float,
    ranges: Sequence[tuple[float, float]],
    labels: Mapping[str, str],
    name: str = "panel",
) -> tuple[list[Panel], list[str]]:
    """Returns the panels of a column and their frames.

    `labels` maps the label of each y axis to the format of its numbers. Clip paths are `name` and the row.
    """
    panels = [
        Panel(x0, TOP + row * (HEIGHT + GAP), WIDTH, HEIGHT, (0, last), y_range)
        for row, y_range in enumerate(ranges)
    ]
    parts: list[str] = []
    for row, (panel, (label, form)) in enumerate(zip(panels, labels.items(), strict=True)):
        parts += [*frame(panel, label, form), clip(panel, f"{name}{row}")]
    return panels, parts


def loss_range(reference: Iterable[float], losses: Iterable[float]) -> tuple[float, float]:
    """Returns a y range for losses without the first tenth of the reference, which falls steeply."""
    finite = [loss for loss in reference if math.isfinite(loss)]
    high, low = finite[len(finite) // 10], min(loss for loss in losses if math.isfinite(loss))
    margin = 0.06 * (high - low) + 0.01
    return low - margin, high + margin


def line(panel: Panel, steps: Iterable[float], values: Iterable[float], style: Style, clipped: str) -> str:
    points = [(panel.x(s), panel.y(v)) for s, v in zip(steps, values, strict=True) if math.isfinite(v)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" {style.stroke} clip-path="url(#{clipped})"/>'


def interval(panel: Panel, place: int, ends: tuple[float, float], mean: float, colour: str) -> list[str]:
    """Draws a bar right of the panel, or an arrow if the interval is outside: upwards also for NaN."""
    low_end, high_end = panel.y_range
    x = panel.x0 + panel.width + 8 + 9 * place
    low, high = ends
    above = not low <= high_end
    if above or high < low_end:
        y, turn = (panel.y0, 6) if above else (panel.y0 + panel.height, -6)
        return [f'<path d="M{x - 3:.1f} {y + turn}l3 {-turn}l3 {turn}" fill="none" stroke="{colour}"/>']
    top, bottom = [panel.y(min(max(v, low_end), high_end)) for v in (high, low)]
    parts = [f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="{colour}" stroke-width="2"/>']
    if low_end < mean < high_end:
        parts.append(f'<circle cx="{x:.1f}" cy="{panel.y(mean):.1f}" r="2.6" fill="{colour}"/>')
    return parts


def document(parts: Sequence[str], styles: Mapping[str, Style], columns: int) -> str:
    """Returns the file: columns of two panels, and the legend below them."""
    legend = []
    bottom, x = TOP + 2 * HEIGHT + GAP + BOTTOM, float(LEFT)
    for label, style in styles.items():
        legend.append(f'<path d="M{x:.0f} {bottom - 4}h24" {style.stroke}/>')
        legend.append(text(x + 30, bottom, label, "start"))
        x += 52 + 6.4 * len(label)
    width = max(x, columns * (WIDTH + LEFT + RIGHT))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {bottom + 16}" '
        'font-family="sans-serif" font-size="12" fill="#222">'
    )
    back = '<rect width="100%" height="100%" fill="#fff"/>'
    return "\n".join([head, back, *parts, *legend, "</svg>"]) + "\n"
