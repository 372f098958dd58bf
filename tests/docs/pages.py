"""The pages of the documentation and their fenced snippets, with the marks that say how a snippet is tested.

A mark is an HTML comment on the line before the fence, so that readers of the page do not see it:

    <!-- snippet: gpu -->                      needs a GPU: run only where torch finds one
    <!-- snippet: needs peft -->               needs a package that the test environment does not have
    <!-- snippet: by tests/python/test_x.py --> that test runs it
    <!-- snippet: part of examples/x.cc -->    its lines stand in that file, which is built or run
    <!-- snippet: file example.cc -->          a file of the scratch folder, for the commands that follow
    <!-- snippet: inside example.cc -->        statements: run at the end of main() of that file
    <!-- snippet: is tests/toy/x.h -->         that file, from its first line to its last; a test builds it

`gpu` may be followed by `file` or `inside`: such a program is compiled where CUDA's headers are.

A page may name what its Python snippets find defined, with `<!-- prelude: NAME -->` (see preludes.py).
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = ("bash", "c", "cmake", "console", "cpp", "python", "text", "yaml")
MARKS = ("gpu", "needs", "by", "part of", "file", "inside", "is")

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>.*)$")
_MARK = re.compile(r"^ *<!-- snippet: (?P<mark>.*) -->$")


@dataclasses.dataclass(frozen=True)
class Snippet:
    page: Path
    line: int  # of its first line of text, from 1
    language: str
    text: str
    mark: str  # one of MARKS, or "" for none
    subject: str  # what follows the mark

    @property
    def place(self) -> str:
        page = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page.name
        return f"{page}:{self.line}"


def pages() -> list[Path]:
    """Every page: README, CONTRIBUTING, docs/, and the pages beside the code."""
    folders = ("src", "libs", "adapters", "train")
    beside = [page for folder in folders for page in sorted((ROOT / folder).rglob("README.md"))]
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")), *beside]


def tested_pages() -> list[Path]:
    """The pages whose snippets are run. The others (benchmarks, formats …) show commands of long runs."""
    return [
        ROOT / "README.md",
        *sorted((ROOT / "docs/guides").glob("*.md")),
        ROOT / "docs/troubleshooting.md",
        ROOT / "docs/which_card.md",
    ]


def snippets(page: Path) -> list[Snippet]:
    """The fenced blocks of a page, in order."""
    found: list[Snippet] = []
    lines = page.read_text(encoding="utf-8").splitlines()
    at = 0
    while at < len(lines):
        opening = _FENCE.match(lines[at])
        if opening is None:
            at += 1
            continue
        end = next(i for i in range(at + 1, len(lines)) if lines[i].strip() == "```")
        indent = len(opening["indent"])
        text = "".join(line[indent:] + "\n" for line in lines[at + 1 : end])
        mark, subject = _mark_of(lines[at - 1] if at else "")
        found.append(Snippet(page, at + 2, opening["language"].strip(), text, mark, subject))
        at = end + 1
    return found


def _mark_of(line: str) -> tuple[str, str]:
    given = _MARK.match(line)
    if given is None:
        return "", ""
    for mark in MARKS:
        if given["mark"] == mark or given["mark"].startswith(mark + " "):
            return mark, given["mark"][len(mark) :].strip()
    return given["mark"], ""


def prelude_of(page: Path) -> str:
    """The name of the page's prelude, or an empty one."""
    found = re.search(r"^<!-- prelude: (\w+) -->$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else ""
