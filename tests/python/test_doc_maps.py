"""What the pages say of the maps' errors, computed from the maps."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import octavo_abi as octavo
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]


def largest_error(state: str, slot: int) -> float:
    """Of the nearest code, in percent of a block's maximum: half a gap, or the way to where a map ends."""
    if state == "fp8":
        codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn)
        values = codes.double().numpy() / 448
    else:
        values = np.sort(octavo.code_map(slot, state).astype(np.float64))
    ends = [1 - values[-1], values[0] + 1 if slot == 0 and state != "fp8" else values[0]]
    return round(100 * float(max(np.diff(values).max() / 2, *ends)), 5)  # the map is in fp32


def test_largest_errors() -> None:
    """docs/guides/distributed.md rounds up; docs/formats.md has the missing -1."""
    page = (ROOT / "docs/guides/distributed.md").read_text()
    said = re.search(
        r"([\d.]+) ?% \(m\) and ([\d.]+) ?% \(v\) of a block's maximum in `8bit`, ([\d.]+) ?% and "
        r"([\d.]+) ?% in `4bit`, ([\d.]+) ?% in `fp8`",
        page,
    )
    assert said is not None, "the sentence has changed: change this test, too"
    pairs = (("8bit", 0), ("8bit", 1), ("4bit", 0), ("4bit", 1), ("fp8", 0))
    for text, (state, slot) in zip(said.groups(), pairs, strict=True):
        error, digits = largest_error(state, slot), len(text.partition(".")[2])
        assert error <= float(text) + 1e-9, (state, slot, error)
        assert float(text) - error < 10.0**-digits, (state, slot, error)
    formats = (ROOT / "docs/formats.md").read_text()
    missing = re.search(
        r".([\d.]+) of the scale in\s+`8bit` \(a loss of ([\d.]+)%\) and .([\d.]+) in `4bit`", formats
    )
    assert missing is not None, "the sentence has changed: change this test, too"
    for text, state in ((missing[1], "8bit"), (missing[3], "4bit")):
        assert abs(float(text) + float(octavo.code_map(0, state).min())) < 1e-7, state
    assert missing[2] == f"{largest_error('8bit', 0):.1f}"
