"""The tables of the adapters' files in docs/architecture.md name files that exist, and leave none out."""

from __future__ import annotations

import re

import pages
import pytest

_FILE = re.compile(r"`([\w/]+(?:\.(?:h|py))?/?)`")
# What no table needs to explain.
UNNAMED = {"__init__.py", "_warn.py"}


def first_cells(heading: str) -> list[str]:
    text = (pages.ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = text.split(f"\n## {heading}\n", 1)[1].split("| file | its job |\n|---|---|\n", 1)[1]
    rows = table.split("\n\n", 1)[0].splitlines()
    return [row.split("|")[1] for row in rows]


@pytest.mark.parametrize(
    ("heading", "folder", "suffix"),
    [
        ("The LibTorch adapter", "adapters/torch/include/octavo/torch", ".h"),
        ("The Python package", "adapters/python/octavo", ".py"),
    ],
)
def test_the_table_names_every_file(heading: str, folder: str, suffix: str) -> None:
    root, named = pages.ROOT / folder, set()
    for cell in first_cells(heading):
        beside = ""  # `optim/base.py`, `plan.py`: in the same folder
        for name in _FILE.findall(cell):
            path = name if "/" in name else beside + name
            beside = path.rpartition("/")[0] + "/" if "/" in path else ""
            assert (root / path).exists(), f"{heading}: there is no {path}"
            named |= (
                {path} if not path.endswith("/") else {f"{path}{p.name}" for p in (root / path).iterdir()}
            )
    found = {str(path.relative_to(root)) for path in root.rglob(f"*{suffix}") if path.name not in UNNAMED}
    assert found - named == set()
