"""Results of the peers' suites by device (results.json), and the tables of docs/compatibility.md made of it.

table.json has the rest of those tables.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
PAGE = HERE.parents[1] / "docs/compatibility.md"
DEVICES = ("cpu", "cuda")
OUTCOMES = ("passed", "failed", "skipped")

PEERS = ("torchao", "bitsandbytes")


def shape(peer: str) -> dict[str, Any]:
    """The peer's table without its results."""
    found: dict[str, Any] = json.loads((HERE / "table.json").read_text())[peer]
    return found


def rows(peer: str, cases: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The outcomes of each row's cases, by the row's pattern. ValueError where a case belongs to no row."""
    out: dict[str, Counter[str]] = {row["cases"]: Counter() for row in shape(peer)["rows"]}
    for case, found in cases.items():
        pattern = next((pattern for pattern in out if re.search(pattern, case)), None)
        if pattern is None:
            raise ValueError(f"{peer}: no row of table.json has the case {case}")
        out[pattern][found["outcome"]] += 1
    return {pattern: dict(counts) for pattern, counts in out.items()}


def load() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


def record(device: str, about: Mapping[str, Any], found: Mapping[str, dict[str, dict[str, int]]]) -> None:
    """Keeps a device's results, and writes them into the page."""
    kept = load()
    kept[device] = {**about, **found}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    PAGE.write_text(with_tables(PAGE.read_text(), kept))


def with_tables(page: str, kept: Mapping[str, Any]) -> str:
    """The page with its tables, each after its marks, made again from the results."""
    for peer in PEERS:
        old = re.compile(rf"(<!-- claim: .*; from: tests/peers/results\.json {peer} -->\n)+(\|.*\n)+")
        if len(old.findall(page)) != 1:
            raise ValueError(f"{PAGE.name}: expected one table from tests/peers/results.json {peer}")
        page = old.sub((_marks(peer, kept) + table(peer, kept)).replace("\\", r"\\"), page)
    return page


def _marks(peer: str, kept: Mapping[str, Any]) -> str:
    """For scripts/check_claims: a device each."""
    return "".join(
        f"<!-- claim: measured {run['date']} at {run['commit']} on {run['machine']}; run: {run['command']}; "
        f"covers: adapters/python tests/peers; from: tests/peers/results.json {peer} -->\n"
        for run in (kept[device] for device in DEVICES)
    )


def table(peer: str, kept: Mapping[str, Any]) -> str:
    about = shape(peer)
    lines = [f"| {about['head']} | cases | CPU | CUDA |", "|---|---|---|---|"]
    totals = {device: Counter[str]() for device in DEVICES}
    listed = json.loads((HERE / "applicable.json").read_text())[peer]
    for row in about["rows"]:
        cells = []
        for device in DEVICES:
            counts = kept[device][peer].get(row["cases"], {})
            totals[device].update(counts)
            cells.append(_cell(counts) + row.get(device, ""))
        number = len(_cases_of(row, about["rows"], listed["applicable"]))
        lines.append(f"| {row['says']} | {number} | {' | '.join(cells)} |")
    cells = [f"**{_cell(totals[device], bold=False)} by the suite**" for device in DEVICES]
    lines.append(f"| **applicable** | **{len(listed['applicable'])}** | {' | '.join(cells)} |")
    others = sum(len(part["cases"]) for part in listed["not_applicable"])
    lines.append(f"| not applicable: {about['not_applicable']} | {others} | | |")
    return "\n".join(lines) + "\n"


def _cases_of(row: Mapping[str, Any], rows: list[dict[str, Any]], cases: list[str]) -> list[str]:
    """The listed cases of a row: a case belongs to the first whose pattern it has."""
    return [case for case in cases if next((r for r in rows if re.search(r["cases"], case)), None) is row]


def _cell(counts: Mapping[str, int], bold: bool = True) -> str:
    """`8 passed, 4 skipped`; a row of one case has no number, and failures stand out."""
    if not counts:
        return "not run yet"
    parts = []
    for outcome in OUTCOMES:
        if number := counts.get(outcome, 0):
            text = outcome if sum(counts.values()) == number == 1 else f"{number} {outcome}"
            parts.append(f"**{text}**" if outcome == "failed" and bold else text)
    return ", ".join(parts)
