"""What holds for every page: fences name their language, marks are known, links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pages
import pytest

_GPUS = (
    "| compute capability | GPUs, for example | states in fp32, bf16, 8bit, 4bit | states in fp8 "
    "| bf16 weights and masters | build with |"
)
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


def rows(text: str, head: str) -> list[list[str]]:
    table = text.partition(f"\n{head}\n")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]


def test_gpus_that_code_exists_for_and_gpus_that_ran() -> None:
    """A page with a list of GPUs that were never run does not say that all of them run."""
    text = (pages.ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    ran = rows(text, "| compute capability | compiled by | run |")
    on_gpus = [row for row in ran if not row[2].startswith("never")]
    assert [row[0] for row in on_gpus] == ["9.0"]
    last = re.search(r"`cuda_test` last on (\S+) at (\w+)", on_gpus[0][2])
    assert last, "says which tests ran, and when"
    testing = (pages.ROOT / "docs/testing.md").read_text(encoding="utf-8")
    assert f"Last on an H200 ({last[1]}, {last[2]}): `cuda_test`" in testing
    assert "runs on every GPU" not in " ".join(text.split())
    named = {row[0]: row[1].split(", ") for row in rows(text, _GPUS)}
    assert {"B100", "B200"} <= set(named["10.0, 12.0"])
    assert named["9.0"] == ["H100", "H200"]


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for link in _LINK.findall(text):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link} leads nowhere"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name}: {target.name} has no heading for #{anchor}"
