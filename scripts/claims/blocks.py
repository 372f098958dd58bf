"""A Markdown page as blocks (paragraphs, list items, tables, code), each with the marks that stand for it.

A mark is an HTML comment, which no reader of the rendered page sees:

    <!-- claim: … -->                    of the block that follows, or of the one it stands in
    <!-- claims of this section: … -->   of every block up to the next heading that has no mark of its own
    <!-- not a claim: why -->            of one block; the figures in it are no results
"""

from __future__ import annotations

import dataclasses
import re

MARK = re.compile(r"(?<!`)<!--\s*(claim|claims of this section|not a claim):\s*(.*?)\s*-->", re.DOTALL)
COMMENT = re.compile(r"(?<!`)<!--.*?-->", re.DOTALL)
HEADING = re.compile(r"#{1,6} ")
ITEM = re.compile(r"\s*([-*+]|\d+\.) ")
FENCE = re.compile(r"\s*(```|~~~)")


@dataclasses.dataclass
class Mark:
    kind: str  # as in the comment, without the colon
    text: str
    line: int


@dataclasses.dataclass
class Block:
    kind: str  # paragraph, item, table, code or heading
    line: int
    lines: list[str]
    section: int = 0
    marks: list[Mark] = dataclasses.field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


def _kind(line: str) -> str:
    if FENCE.match(line):
        return "code"
    if HEADING.match(line):
        return "heading"
    if line.lstrip().startswith("|"):
        return "table"
    return "item" if ITEM.match(line) else "paragraph"


def _goes_on(block: Block, line: str) -> bool:
    """Whether a line belongs to the block before it."""
    if block.kind == "code":
        return len(block.lines) == 1 or not FENCE.match(block.lines[-1])
    if block.kind == "heading" or not line.strip():
        return False
    kind = _kind(line)
    return kind == block.kind == "table" or (kind == "paragraph" and block.kind in ("paragraph", "item"))


def _without_code(text: str) -> str:
    """Comments in blocks of code are code."""
    lines, inside = text.split("\n"), False
    for number, line in enumerate(lines):
        if FENCE.match(line):
            inside = not inside
        elif inside:
            lines[number] = line.replace("<!--", "<--")
    return "\n".join(lines)


def _without_comments(text: str) -> tuple[list[str], list[Mark]]:
    """The lines with comments blanked, and the marks among them. Lines keep their numbers."""
    marks = []
    text = _without_code(text)
    for found in MARK.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        marks.append(Mark(found[1], " ".join(found[2].split()), line))
    return COMMENT.sub(lambda c: "\0" + "\n\0" * c[0].count("\n"), text).split("\n"), marks


def read(text: str) -> list[Block]:
    """The blocks of a page in order, marks of sections handed to their blocks."""
    lines, marks = _without_comments(text)
    blocks: list[Block] = []
    section, current = 0, None
    for number, line in enumerate(lines, start=1):
        bare = line.replace("\0", "")
        if "\0" in line and not bare.strip():  # nothing but a comment
            current = None
        elif current is not None and _goes_on(current, bare):
            current.lines.append(bare)
        elif not bare.strip():
            current = None
        else:
            kind = _kind(bare)
            section += kind == "heading"
            current = Block(kind, number, [bare], section)
            blocks.append(current)
    _hand_out(blocks, marks)
    return blocks


def _hand_out(blocks: list[Block], marks: list[Mark]) -> None:
    sections: dict[int, list[Mark]] = {}
    for mark in marks:
        inside = next((b for b in blocks if b.line <= mark.line < b.line + len(b.lines)), None)
        after = inside or next((b for b in blocks if b.line > mark.line), None)
        if mark.kind == "claims of this section":
            before = [b.section for b in blocks if b.line < mark.line]
            sections.setdefault(before[-1] if before else 0, []).append(mark)
        elif after is not None:
            after.marks.append(mark)
    for block in blocks:
        if not block.marks:
            block.marks = list(sections.get(block.section, []))
