"""Draws a Chrome trace: one row per queue, with coloured bars where it is busy.

Reads the traces of `octavo bench offload --trace` and `benchmarks/offload.py --trace`. Intervals of one kind
(the words of a name without its numbers) have one colour. Intervals that touch at the picture's resolution
are drawn as one.

python benchmarks/draw_trace.py offload.json offload.svg --title "ViT-g, states streamed"
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
from dataclasses import dataclass

from report import option_parser

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "convergence"))

from panels_svg import text, ticks

LEFT, WIDTH, RIGHT, TOP, ROW, BAR = 118, 860, 62, 40, 30, 20
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5cc0", "#8a8a8a")


@dataclass(frozen=True)
class Interval:
    row: str
    kind: str
    begin: float  # milliseconds
    end: float


def read(trace: dict[str, list[dict[str, object]]]) -> list[Interval]:
    """Returns the complete events of a trace with the names of their threads."""
    events = trace["traceEvents"]
    names = {
        (event.get("pid"), event.get("tid")): str(event["args"]["name"])  # type: ignore[index]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    found = []
    for event in events:
        if event["ph"] != "X":
            continue
        key = (event.get("pid"), event.get("tid"))
        begin, length = float(str(event["ts"])) / 1e3, float(str(event["dur"])) / 1e3
        kind = re.sub(r"[\W\d_]+", " ", str(event["name"])).strip() or "?"
        found.append(Interval(names.get(key, str(key[1])), kind, begin, begin + length))
    return sorted(found, key=lambda each: each.begin)


def merged(intervals: list[Interval], gap: float) -> list[Interval]:
    """Joins neighbours of one row and kind that are at most `gap` apart."""
    out: list[Interval] = []
    last: dict[str, int] = {}  # the index of each row's last interval
    for each in intervals:
        at = last.get(each.row)
        if at is not None and out[at].kind == each.kind and each.begin - out[at].end <= gap:
            out[at] = Interval(each.row, each.kind, out[at].begin, max(out[at].end, each.end))
            continue
        last[each.row] = len(out)
        out.append(each)
    return out


def busy(intervals: list[Interval], begin: float, end: float) -> float:
    """Returns the share of the time in which at least one interval is active."""
    total, reached = 0.0, begin
    for each in sorted(intervals, key=lambda one: one.begin):
        total += max(0.0, min(each.end, end) - max(each.begin, reached))
        reached = max(reached, each.end)
    return total / (end - begin)


def draw(intervals: list[Interval], title: str, begin: float, end: float) -> str:
    rows = sorted({each.row for each in intervals}, key=lambda row: (row != "model", row))
    kinds = list(dict.fromkeys(each.kind for each in intervals))
    colour = {kind: COLOURS[i % len(COLOURS)] for i, kind in enumerate(kinds)}
    scale, bottom = WIDTH / (end - begin), TOP + ROW * len(rows)
    parts = [
        text(LEFT, 20, title, "start", ' font-weight="bold"'),
        text(LEFT + WIDTH + RIGHT - 4, 20, "busy", "end"),
    ]
    for value in ticks(0.0, end - begin, 10):
        x = LEFT + value * scale
        parts.append(f'<path d="M{x:.1f} {TOP}v{ROW * len(rows)}" stroke="#ddd"/>')
        parts.append(text(x, bottom + 16, f"{value:g}"))
    parts.append(text(LEFT + WIDTH / 2, bottom + 32, "milliseconds"))
    for place, row in enumerate(rows):
        mine = [each for each in intervals if each.row == row]
        y = TOP + place * ROW
        parts.append(text(LEFT - 8, y + ROW / 2 + 4, row, "end"))
        share = f"{busy(mine, begin, end):.0%}"
        parts.append(text(LEFT + WIDTH + RIGHT - 4, y + ROW / 2 + 4, share, "end"))
        for each in merged(mine, 0.5 / scale):
            left, right = max(each.begin, begin), min(each.end, end)
            if left < right:
                x, width = LEFT + (left - begin) * scale, max(0.4, (right - left) * scale)
                box = f'x="{x:.1f}" y="{y + (ROW - BAR) / 2:g}" width="{width:.1f}" height="{BAR}"'
                parts.append(f'<rect {box} fill="{colour[each.kind]}"/>')
    x = float(LEFT)
    for kind in kinds:
        parts.append(f'<rect x="{x:.0f}" y="{bottom + 44}" width="12" height="12" fill="{colour[kind]}"/>')
        parts.append(text(x + 17, bottom + 54, kind, "start"))
        x += 34 + 6.6 * len(kind)
    size = f"0 0 {LEFT + WIDTH + RIGHT} {bottom + 66}"
    font = 'font-family="sans-serif" font-size="12" fill="#222"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{size}" {font}>'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#fff"/>', *parts, "</svg>"]) + "\n"


def main() -> int:
    parser = option_parser(__doc__)
    parser.add_argument("trace", type=pathlib.Path)
    parser.add_argument("picture", type=pathlib.Path)
    parser.add_argument("--title", default="")
    parser.add_argument("--begin", type=float, default=0.0, help="milliseconds from the first interval")
    parser.add_argument("--end", type=float, help="milliseconds (default: the end of the trace)")
    options = parser.parse_args()
    intervals = read(json.loads(options.trace.read_text()))
    if not intervals:
        parser.error(f"{options.trace}: has no intervals; does this run offload anything?")
    first = intervals[0].begin
    end = first + options.end if options.end else max(each.end for each in intervals)
    if end <= first + options.begin:
        parser.error(f"--begin: got {options.begin:g}, expected less than the end, {end - first:g} ms")
    options.picture.write_text(draw(intervals, options.title, first + options.begin, end))
    return 0


if __name__ == "__main__":
    sys.exit(main())
