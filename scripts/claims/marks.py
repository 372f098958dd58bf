"""What a mark says, and whether it holds:

claim: measured 2026-11-15 at 36a9fe5 on an H200; run: make peers; covers: adapters/python src/cuda
    `run: above` or `run: below` is the nearest block of code of the section. Further parts are remarks.
claim: test tests/python/test_x.py::test_y, tests/optimizers/z_test.cc::Suite.Name
    The test compares the figures with what it computes, or asserts what the sentence says.
claim: see docs/benchmarks.md#anchor
    The figures are repeated from a marked section, and must be there, rounded or not.
not a claim: why
"""

from __future__ import annotations

import dataclasses
import datetime
import pathlib
import re

from . import blocks, commands
from .blocks import Block, Mark
from .history import History

MEASURED = re.compile(r"measured (\S+) at (\S+?)(?: on ([^;]+))?$")


@dataclasses.dataclass
class Findings:
    errors: list[str] = dataclasses.field(default_factory=list)
    unchecked: list[str] = dataclasses.field(default_factory=list)
    outdated: list[str] = dataclasses.field(default_factory=list)


class Checker:
    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.history = History(root)
        self.found = Findings()

    def check(self, mark: Mark, block: Block, page: list[Block], where: str) -> None:
        if block.kind in ("heading", "code") and not mark.kind.startswith("claims of"):
            self.found.errors.append(f"{where}: a mark stands before its block, not before a {block.kind}")
            return
        if mark.kind == "not a claim":
            if not mark.text:
                self.found.errors.append(f"{where}: says no reason: <!-- not a claim: why -->")
            return
        kind = mark.text.split(" ", 1)[0]
        check = {"measured": self._measured, "test": self._test, "see": self._see}.get(kind)
        if check is None:
            self.found.errors.append(f"{where}: {mark.text[:40]!r}: expected measured …, test … or see …")
            return
        check(mark, block, page, where)

    def _measured(self, mark: Mark, block: Block, page: list[Block], where: str) -> None:
        error = self.found.errors.append
        first, *rest = (part.strip() for part in mark.text.split(";"))
        parts = dict(part.split(":", 1) for part in rest if ":" in part)
        said = MEASURED.match(first)
        if said is None:
            error(f"{where}: {first!r}: expected 'measured <date> at <commit> on <machine>'")
            return
        date, commit = said[1], said[2]
        if (problem := _bad_date(date)) != "":
            error(f"{where}: {problem}")
        command = _command(parts.get("run", "").strip(), mark, page)
        if not command:
            error(f"{where}: no command: add '; run: <command>' (or above, below)")
        for problem in commands.problems(command, self.root):
            error(f"{where}: {problem} (run: {commands.one_line(command)})")
        paths = parts.get("covers", "").split()
        if not paths:
            error(f"{where}: add '; covers: <paths>', the code whose change makes the figures old")
        for path in paths:
            if not (self.root / path).exists():
                error(f"{where}: covers {path}, which does not exist")
        problem, unknown = self.history.problem(commit, date)
        if unknown:
            self.found.unchecked.append(f"{where}: {problem}")
        elif problem:
            error(f"{where}: {problem}")
        elif paths and (number := self.history.since(commit, paths)):
            again = commands.one_line(command)
            self.found.outdated.append(f"{where}: {date} at {commit}, {number} changes since; run: {again}")

    def _test(self, mark: Mark, block: Block, page: list[Block], where: str) -> None:
        for name in re.split(r"[,;]\s*", mark.text.removeprefix("test ").strip()):
            path, _, test = name.partition("::")
            file = self.root / path
            if not file.is_file():
                self.found.errors.append(f"{where}: {path} does not exist")
            elif not test or not _has_test(file.read_text(), test):
                self.found.errors.append(f"{where}: {path} has no test {test or '(name it: file::test)'}")

    def _see(self, mark: Mark, block: Block, page: list[Block], where: str) -> None:
        """Every figure with a fraction or a thousands comma is in the section it refers to."""
        path, _, anchor = mark.text.removeprefix("see ").strip().partition("#")
        file = self.root / path
        if not file.is_file():
            self.found.errors.append(f"{where}: {path} does not exist")
            return
        other = blocks.read(file.read_text())
        sections = {b.section for b in other if b.kind == "heading" and _anchor(b.text) == anchor}
        section = [b for b in other if b.section in sections] if anchor else other
        if not section:
            self.found.errors.append(f"{where}: {path} has no heading #{anchor}")
            return
        there = [float(n) for b in section for n in _numbers(b.text)]
        for number in _numbers(re.sub(r"`[^`]*`", "", block.text)):
            digits = len(number.partition(".")[2])
            if ("." in number or float(number) >= 1000) and not any(
                abs(t - float(number)) <= 0.5 * 10.0**-digits * 1.0001 for t in there
            ):
                self.found.errors.append(f"{where}: {number} is not in {mark.text.removeprefix('see ')}")


def _numbers(text: str) -> list[str]:
    return [n.replace(",", "") for n in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?![\w])", text.rstrip(","))]


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    title = heading.lstrip("# ").lower().replace("`", "")
    return re.sub(r"[^\w\- ]", "", title).strip().replace(" ", "-")


def _bad_date(date: str) -> str:
    try:
        day = datetime.date.fromisoformat(date)
    except ValueError:
        return f"{date!r} is no date: expected YYYY-MM-DD"
    today = datetime.datetime.now(datetime.timezone.utc).date()
    return f"{date} is in the future" if day > today + datetime.timedelta(days=1) else ""


def _command(run: str, mark: Mark, page: list[Block]) -> str:
    """The command itself, or the code block that it points to."""
    if run not in ("above", "below"):
        return run
    before = [b for b in page if b.line < mark.line]
    section = before[-1].section if before else 0
    code = [b for b in page if b.kind == "code" and b.section == section]
    near = (
        [b for b in code if b.line < mark.line][-1:]
        if run == "above"
        else [b for b in code if b.line > mark.line][:1]
    )
    return "\n".join(near[0].lines[1:-1]) if near else ""


def _has_test(text: str, name: str) -> bool:
    if "." in name:  # GoogleTest's Suite.Name
        suite, _, test = name.partition(".")
        return bool(re.search(rf"TEST(_F|_P)?\(\s*{re.escape(suite)},\s*{re.escape(test)}\s*\)", text))
    return bool(re.search(rf"def {re.escape(name.split('::')[-1])}\(", text))
