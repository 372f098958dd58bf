"""The READMEs of the adapters have a table that names every file, and only files that exist."""

from __future__ import annotations

import re

import pages
import pytest

_FILE = re.compile(r"`([\w/]+(?:\.(?:h|py))?/?)`")
# What no table needs to explain.
UNNAMED = {"__init__.py", "_warn.py"}


def first_cells(adapter: str) -> list[str]:
    text = (pages.ROOT / adapter / "README.md").read_text(encoding="utf-8")
    table = text.split("| file | its job |\n|---|---|\n", 1)[1]
    rows = table.split("\n\n", 1)[0].splitlines()
    return [row.split("|")[1] for row in rows]


@pytest.mark.parametrize(
    ("adapter", "folder", "suffix"),
    [
        ("adapters/torch", "adapters/torch/include/octavo/torch", ".h"),
        ("adapters/python", "adapters/python/octavo", ".py"),
    ],
)
def test_the_table_names_every_file(adapter: str, folder: str, suffix: str) -> None:
    root, named = pages.ROOT / folder, set()
    for cell in first_cells(adapter):
        beside = ""  # `optim/base.py`, `plan.py`: in the same folder
        for name in _FILE.findall(cell):
            path = name if "/" in name else beside + name
            beside = path.rpartition("/")[0] + "/" if "/" in path else ""
            assert (root / path).exists(), f"{adapter}: there is no {path}"
            named |= (
                {path} if not path.endswith("/") else {f"{path}{p.name}" for p in (root / path).iterdir()}
            )
    found = {str(path.relative_to(root)) for path in root.rglob(f"*{suffix}") if path.name not in UNNAMED}
    assert found - named == set()


_SOURCE = re.compile(r"`([\w/.]+\.(?:h|hpp|cc|cu|cuh))`")


@pytest.mark.parametrize("page", ["docs/architecture.md", "train/README.md"])
def test_the_sources_that_a_page_names_exist(page: str) -> None:
    text = (pages.ROOT / page).read_text(encoding="utf-8")
    named = set(_SOURCE.findall(text))
    assert len(named) > 5
    roots = [pages.ROOT, pages.ROOT / "src", (pages.ROOT / page).parent, pages.ROOT / "train"]
    roots += [pages.ROOT / "include", *(pages.ROOT / "libs").glob("*/include")]
    missing = [name for name in named if not any((root / name).exists() for root in roots)]
    bare = {path.name for path in (pages.ROOT / "include").rglob("*.h*")}
    assert [name for name in sorted(missing) if name not in bare] == []
