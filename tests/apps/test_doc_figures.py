"""Compares the figures in the README and the docs with those that the command computes."""

from __future__ import annotations

import functools
import json
import math
import os
import pathlib
import re
import subprocess
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHOOSE = "docs/guides/choose_a_format.md"
COMMAND = os.environ.get("OCTAVO_COMMAND", str(ROOT / "build/bin/octavo"))


@functools.cache
def octavo(*arguments: str) -> Any:
    done = subprocess.run([COMMAND, *arguments, "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def parakeet() -> dict[str, dict[str, Any]]:
    """Returns the rows of AdamW on Parakeet's tensors, by format."""
    rows = octavo("bench", "optimizer", "--shape", "parakeet", "--dry-run", "--state", "all")["rows"]
    return {row["state"]: row for row in rows}


def page(name: str) -> str:
    return (ROOT / name).read_text()


def table(name: str, head: str) -> list[list[str]]:
    """Returns the cells of the page's table whose first line begins with `head`, without backticks and
    stars."""
    lines = page(name).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(head))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([re.sub(r"[`*]", "", cell).strip() for cell in line.strip("|").split("|")])
    return rows


def same(text: str, value: float) -> bool:
    """Returns whether the text is the value, rounded to the text's number of digits."""
    digits = len(text.partition(".")[2])
    return abs(float(text.replace(",", "")) - value) <= 0.5 * 10.0**-digits * (1 + 1e-9)


def support_table() -> str:
    """Formats optimizers as rows and formats as columns. Optimizers with the same bytes in every format
    share a row."""
    found = octavo("info")
    rows: dict[tuple[str, ...], list[str]] = {}
    for optimizer in found["optimizers"]:
        cells = [row["bytes_per_param"] for row in found["support"] if row["optimizer"] == optimizer]
        texts = tuple("-" if cell is None else f"{cell:.2f}".removesuffix(".00") for cell in cells)
        rows.setdefault(texts, []).append(optimizer)
    lines = [["", *found["states"]], ["---"] * (1 + len(found["states"]))]
    lines += [[", ".join(names), *cells] for cells, names in rows.items()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines).replace("|  |", "| |") + "\n"


def test_bytes_of_every_optimizer_and_format() -> None:
    """Checks the table of `octavo info` in choose_a_format.md. OCTAVO_UPDATE_DOCS=1 writes it."""
    whole = re.compile(r"^\| \| fp32 .*\n(?:\|.*\n)+", re.MULTILINE)
    if os.environ.get("OCTAVO_UPDATE_DOCS"):
        (ROOT / CHOOSE).write_text(whole.sub(support_table(), page(CHOOSE), count=1))
    written = whole.search(page(CHOOSE))
    assert written is not None
    assert written[0] == support_table(), "OCTAVO_UPDATE_DOCS=1 writes it"


def test_bytes_on_parakeet() -> None:
    rows = parakeet()
    for state, *_, cell in table("docs/formats.md", "| state format |"):
        assert same(cell, rows[state]["state_bytes_per_param"]), (state, cell)
    for states, cell, alone, small in table("docs/benchmarks.md", "| state | B/param | of the format"):
        for state in states.split(", "):
            assert same(cell, rows[state]["state_bytes_per_param"]), (state, cell)
            if "to" not in alone:
                assert abs(float(cell) - float(alone) - float(small)) < 1.1e-4, (state, small)


def test_size_of_parakeet() -> None:
    tensors = octavo("bench", "shapes", "parakeet")["tensors"]
    numbers = [math.prod(tensor["shape"]) for tensor in tensors]
    small = sum(number for number in numbers if number < 4096) / sum(numbers)
    for name in ("docs/formats.md", "docs/benchmarks.md"):
        said = re.findall(r"(\d+) tensors, ([\d,]{9,}) parameters", page(name))
        assert said, name
        assert {(int(n), int(p.replace(",", ""))) for n, p in said} == {(len(numbers), sum(numbers))}, name
    share = re.search(r"elements \(([\d.]+)% of the parameters\)", page("docs/formats.md"))
    assert share is not None
    assert same(share[1], 100 * small)
