"""Which blocks state results: sentences with a figure of performance or of tests, and tables of numbers."""

from __future__ import annotations

import re

from .blocks import Block

NUMBER = r"(?<![\w.])\d[\d,]*(?:\.\d+)?"
UNIT = (
    r"(?:ms|us|ns|µs|s|[KMGT]i?B(?:/s)?|tokens/s|clips/s)\b"
    r"|(?:micro|milli)?seconds?\b|minutes?\b|hours?\b|%|percent\b|points?\b"
    r"|times (?:as |the |our |that |what |faster|slower|longer)|x (?:faster|slower)|of its speed"
    r"|bytes (?:of state )?per parameter|instructions a parameter|(?:cases )?(?:passed|failed)\b"
)
RUN = re.compile(rf"(?:{NUMBER}\s*(?:to|and|or|,|/)\s*)*{NUMBER}[ -]*(?:{UNIT}|times\b)")  # "20 and 33 times"
FIGURE = re.compile(rf"{NUMBER}(?:[ -]*)(?:{UNIT})")
HALF = re.compile(r"\b(?:half|twice|a third of) the (?:speed|time)\b")
TIMES = re.compile(r"\d\.\d+ times\b")
COSINE = re.compile(r"cosine\b[^.|;,()]{0,25}?0\.\d+")
BUFFER = re.compile(r"(?:1|2|4|8|16|32|64|128|256|512) [KMG]i?B$")  # a size that was chosen, not found
NUMERIC = re.compile(rf"[-+±<>~]*{NUMBER}(?:e-?\d+)?(?:\s*(?:{UNIT}))?(?:\s*(?:[/(;,]|to ).*)?$")
PRECISE = re.compile(rf"\d\.\d|\d,\d{{3}}|\de-\d|{UNIT}")  # counts and sizes are not results
CODE = re.compile(r"`[^`]*`|\]\([^)]*\)")


def _plain(text: str) -> str:
    """Without code and addresses of links."""
    return CODE.sub("`", text).replace("**", "")


def _result_table(block: Block) -> bool:
    """Two cells or more beside the first column are a measured number, with or without unit and remark."""
    cells = [cell for row in block.lines[2:] for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))[1:]]
    return sum(bool(NUMERIC.match(c) and PRECISE.search(c)) for c in (_plain(c).strip() for c in cells)) >= 2


def states_results(block: Block) -> str:
    """The first figure that makes the block a claim, or an empty string."""
    if block.kind in ("code", "heading"):
        return ""
    if block.kind == "table" and _result_table(block):
        return "a table of numbers"
    text = _plain(" ".join(block.lines))
    figures = [found[0] for found in FIGURE.finditer(text) if not BUFFER.match(found[0])]
    figures += [found[0] for pattern in (COSINE, HALF, TIMES) for found in pattern.finditer(text)]
    return figures[0] if figures else ""
