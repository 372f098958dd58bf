"""What holds for every page: fences name their language, marks are known, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pages
import pytest

_LINK = re.compile(r"\[[^\]]*\]\((?!https?://)([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: page.name)
def test_fences_and_marks(page: Path) -> None:
    for snippet in pages.snippets(page):
        assert snippet.language in pages.LANGUAGES, f"{snippet.place}: language {snippet.language!r}"
        assert not snippet.mark or snippet.mark in pages.MARKS, f"{snippet.place}: mark {snippet.mark!r}"


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in _LINK.findall(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link} leads nowhere"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name}: {target.name} has no heading for #{anchor}"
