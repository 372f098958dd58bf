"""What a mark says, and whether it holds:

claim: measured 2026-11-15 at 36a9fe5 on an H200; run: make peers; covers: adapters/python src/cuda
    `run: above` or `run: below` is the nearest block of code of the section. Further parts are remarks.
claim: test tests/python/test_x.py::test_y, tests/optimizers/z_test.cc::Suite.Name
    The test compares the figures with what it computes, or asserts what the sentence says.
claim: see docs/benchmarks.md#anchor, docs/formats.md#anchor; column: peak
    The figures are repeated from marked sections, and must be there, rounded or not. They are as old as the
    blocks that they are repeated from. With `column` only that column of the table is compared.
not a claim: why
"""

from __future__ import annotations

import dataclasses
import datetime
import pathlib
import re

from . import blocks, commands, figures
from .blocks import Block, Mark
from .history import History

CODE = re.compile(r"`[^`]*`|\]\([^)]*\)")
LEADING = re.compile(rf"[-+±<>~]*{figures.NUMBER}(?=$|[\s(,;/%])")
DATED = re.compile(r"(\d{4}-\d\d-\d\d)(?:,? at ([0-9a-f]{7,}))?")
MEASURED = re.compile(r"measured (\S+) at (\S+?)(?: on ([^;]+))?$")


@dataclasses.dataclass
class Findings:
    errors: list[str] = dataclasses.field(default_factory=list)
    unchecked: list[str] = dataclasses.field(default_factory=list)
    outdated: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Measurement:
    date: str
    commit: str
    command: str
    paths: tuple[str, ...]


class Checker:
    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.history = History(root)
        self.found = Findings()
        self._pages: dict[str, list[Block]] = {}

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
        run = _measurement(mark, page)
        if run is None:
            first = mark.text.split(";")[0].strip()
            error(f"{where}: {first!r}: expected 'measured <date> at <commit> on <machine>'")
            return
        if (problem := _bad_date(run.date)) != "":
            error(f"{where}: {problem}")
        if not run.command:
            error(f"{where}: no command: add '; run: <command>' (or above, below)")
        for problem in commands.problems(run.command, self.root):
            error(f"{where}: {problem} (run: {commands.one_line(run.command)})")
        if not run.paths:
            error(f"{where}: add '; covers: <paths>', the code whose change makes the figures old")
        for path in run.paths:
            if not (self.root / path).exists():
                error(f"{where}: covers {path}, which does not exist")
        problem, unknown = self.history.problem(run.commit, run.date)
        if unknown:
            self.found.unchecked.append(f"{where}: {problem}")
        elif problem:
            error(f"{where}: {problem}")
        else:
            self._list_if_old(run, where)

    def _list_if_old(self, run: Measurement, where: str) -> None:
        if run.paths and (number := self.history.since(run.commit, run.paths)):
            again = commands.one_line(run.command)
            age = f"{run.date} at {run.commit}, {number} changes since"
            self.found.outdated.append(f"{where}: {age}; run: {again}")

    def _test(self, mark: Mark, block: Block, page: list[Block], where: str) -> None:
        for name in re.split(r"[,;]\s*", mark.text.removeprefix("test ").strip()):
            path, _, test = name.partition("::")
            file = self.root / path
            if not file.is_file():
                self.found.errors.append(f"{where}: {path} does not exist")
            elif not test or not _has_test(file.read_text(), test):
                self.found.errors.append(f"{where}: {path} has no test {test or '(name it: file::test)'}")

    def _see(self, mark: Mark, block: Block, page: list[Block], where: str) -> None:
        """Every figure of the block is in the sections that the mark names. A section whose figures the block
        repeats, and whose code has changed since, makes the block old, too."""
        sources, column, problems = self._sources(mark)
        self.found.errors += [f"{where}: {problem}" for problem in problems]
        if problems:
            return
        numbers = _repeated(block, column)
        if column and not numbers:
            self.found.errors.append(f"{where}: no column that begins with {column!r} has a figure")
        for number in numbers:
            if not any(_holds(source, number) for _, source in sources):
                said = mark.text.removeprefix("see ").split(";")[0]
                self.found.errors.append(f"{where}: {number} is not in {said}")
        runs = self._measurements(mark, numbers, set())
        for date, commit in [] if column else DATED.findall(CODE.sub("`", block.text)):
            if not any(run.date == date and commit in ("", run.commit) for run in runs):
                self.found.errors.append(f"{where}: no run of these figures is of {date} {commit}".rstrip())
        for run in runs:
            self._list_if_old(run, where)

    def _sources(self, mark: Mark) -> tuple[list[tuple[list[Block], Block]], str, list[str]]:
        """The blocks of the sections that a `see` mark names, each with its page; the column that the mark
        names; and what is wrong with the mark."""
        first, *rest = (part.strip() for part in mark.text.removeprefix("see ").split(";"))
        column = next((part.split(":", 1)[1].strip() for part in rest if part.startswith("column:")), "")
        sources: list[tuple[list[Block], Block]] = []
        problems: list[str] = []
        for name in re.split(r",\s*", first):
            path, _, anchor = name.partition("#")
            if not (self.root / path).is_file():
                problems.append(f"{path} does not exist")
                continue
            page = self._page(path)
            sections = {b.section for b in page if b.kind == "heading" and _anchor(b.text) == anchor}
            if not anchor:
                problems.append(f"{path} is a complete page: name the section, as in {path}#its-heading")
            elif not sections:
                problems.append(f"{path} has no heading #{anchor}")
            sources += [
                (page, b) for b in page if b.section in sections and b.kind not in ("heading", "code")
            ]
        return sources, column, problems

    def _page(self, path: str) -> list[Block]:
        if path not in self._pages:
            self._pages[path] = blocks.read((self.root / path).read_text())
        return self._pages[path]

    def _measurements(self, mark: Mark, numbers: list[str], seen: set[int]) -> list[Measurement]:
        """The runs that measured the numbers, through further `see` marks where there are any."""
        runs: list[Measurement] = []
        for page, source in self._sources(mark)[0]:
            if id(source) in seen or not any(_holds(source, number) for number in numbers):
                continue
            seen.add(id(source))
            for other in source.marks:
                if other.text.startswith("see "):
                    runs += self._measurements(other, numbers, seen)
                elif (run := _measurement(other, page)) is not None:
                    runs.append(run)
        return list(dict.fromkeys(runs))


def _measurement(mark: Mark, page: list[Block]) -> Measurement | None:
    """The run that a `measured` mark names, or None for other marks."""
    first, *rest = (part.strip() for part in mark.text.split(";"))
    said = MEASURED.match(first)
    if said is None:
        return None
    parts = dict(part.split(":", 1) for part in rest if ":" in part)
    command = _command(parts.get("run", "").strip(), mark, page)
    return Measurement(said[1], said[2], command, tuple(parts.get("covers", "").split()))


def _repeated(block: Block, column: str) -> list[str]:
    """The figures of a block that a `see` mark compares: numbers with a fraction, from 1,000 on, or with a
    unit, and in tables the numbers that a cell begins with."""
    lines = [DATED.sub("", CODE.sub("`", line)).replace("**", "") for line in block.lines]
    if block.kind != "table":
        return list(dict.fromkeys(_figures(" ".join(lines))))
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))] for line in lines]
    wanted = [i for i, name in enumerate(rows[0]) if name.startswith(column)]
    cells = [row[i] for row in (rows[2:] if column else rows) for i in wanted if i < len(row)]
    leading = [
        found[0] for row in rows[2:] for i in wanted if 0 < i < len(row) if (found := LEADING.match(row[i]))
    ]
    return list(dict.fromkeys([*(n for cell in cells for n in _figures(cell)), *_numbers(" ".join(leading))]))


def _figures(text: str) -> list[str]:
    with_unit = [
        n for found in figures.RUN.finditer(text) for n in _numbers(re.sub(figures.UNIT, " ", found[0]))
    ]
    return [n for n in _numbers(text) if "." in n or float(n) >= 1000 or n in with_unit]


def _holds(block: Block, number: str) -> bool:
    """Returns true if the block has the number, rounded or not."""
    close = 0.5 * 10.0 ** -len(number.partition(".")[2]) * 1.0001
    text = DATED.sub("", CODE.sub("`", block.text) if block.kind != "table" else block.text)
    return any(abs(float(n) - float(number)) <= close for n in _numbers(text))


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
