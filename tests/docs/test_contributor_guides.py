"""The files and names in the tables of the guides for contributors exist, so that the guides stay true."""

from __future__ import annotations

import re

import pages
import pytest

GUIDES = ("add_a_format.md", "add_a_task.md", "add_an_optimizer.md")
# What a reader of the guides adds: it is not there yet.
ADDED = re.compile(r"[Tt]riad|[Ll]inear|6bit|tasks/images")

_ROW = re.compile(r"^\| (`[^|]*`[^|]*) \| ([^|]*)", re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")


def rows() -> list[tuple[str, str, str]]:
    """Guide, files and what to change in them, for each row that begins with a file."""
    found = []
    for guide in GUIDES:
        text = (pages.ROOT / "docs/guides" / guide).read_text(encoding="utf-8")
        found += [(guide, files, change) for files, change in _ROW.findall(text) if "/" in files]
    return found


@pytest.mark.parametrize(("guide", "files", "change"), rows())
def test_row(guide: str, files: str, change: str) -> None:
    text, folder = "", pages.ROOT
    for name in _CODE.findall(files):
        if ADDED.search(name):
            return
        # `tests/reference/step.h`, `.cc`: the same name with another ending.
        path = folder.with_suffix(name) if name.startswith(".") else pages.ROOT / name
        if "/" not in name and not name.startswith("."):
            path = folder.parent / name
        folder = path
        found = list(path.parent.glob(path.name))
        assert found, f"{guide}: there is no {name}"
        text += "".join(file.read_text(encoding="utf-8") for file in found)
    for name in _CODE.findall(change):
        if re.fullmatch(r"\w+", name) and not ADDED.search(name):
            assert re.search(rf"\b{name}\b", text), f"{guide}: {files} does not have {name}"


def test_there_are_rows() -> None:
    assert len(rows()) > 15
