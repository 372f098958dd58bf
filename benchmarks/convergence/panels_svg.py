"""Plots as SVG files, written without a library: boxes with scales, curves, intervals, a legend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

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


@dataclass
class Style:
    colour: str
    dash: str = ""

    @property
    def stroke(self) -> str:
        dashes = f' stroke-dasharray="{self.dash}"' if self.dash else ""
        return f'stroke="{self.colour}" stroke-width="1.6"{dashes}'


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers in the range: steps of 1, 2 or 5 times a power of ten."""
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    step *= next(k for k in (1, 2, 5, 10) if (high - low) / (step * k) <= most)
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def frame(panel: Panel, label: str, form: Callable[[float], str]) -> list[str]:
    p = panel
    parts = [f'<rect x="{p.x0}" y="{p.y0}" width="{p.width}" height="{p.height}" fill="none" stroke="#999"/>']
    for value in ticks(*p.y_range):
        y = p.y(value)
        parts.append(f'<path d="M{p.x0} {y:.1f}h{p.width}" stroke="#ddd"/>')
        parts.append(text(p.x0 - 6, y + 4, form(value), "end"))
    for value in ticks(*p.x_range):
        parts.append(text(p.x(value), p.y0 + p.height + 15, f"{value:g}"))
    parts.append(text(p.x0 + p.width / 2, p.y0 + p.height + 31, "step"))
    middle = p.y0 + p.height / 2
    parts.append(text(p.x0 - 50, middle, label, more=f' transform="rotate(-90 {p.x0 - 50} {middle})"'))
    return parts


def clip(panel: Panel, name: str) -> str:
    """Lines that name it end at the panel's edges."""
    box = f'x="{panel.x0}" y="{panel.y0}" width="{panel.width}" height="{panel.height}"'
    return f'<clipPath id="{name}"><rect {box}/></clipPath>'


def line(panel: Panel, steps: Iterable[float], values: Iterable[float], style: Style, clipped: str) -> str:
    points = [(panel.x(s), panel.y(v)) for s, v in zip(steps, values, strict=True) if math.isfinite(v)]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" {style.stroke} clip-path="url(#{clipped})"/>'


def interval(panel: Panel, place: int, ends: tuple[float, float], mean: float, colour: str) -> list[str]:
    """A bar right of the panel, the `place`-th; an arrow where it is outside, upwards for NaN."""
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
    """The whole file: columns of two panels, and under them the legend, by label."""
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
