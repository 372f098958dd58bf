"""Runs fp8_attention.py on the CPU, with the reference implementation of FP8."""

from __future__ import annotations

import json
import os

import pytest

os.environ.setdefault("OCTAVO_FP8_REFERENCE", "1")
import fp8_attention


def test_both_matmuls_are_timed(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--heads", "2", "--texts", "1", "--length", "16", "--neurons", "32", "--device", "cpu"]
    rows = fp8_attention.run([*sizes, "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert [row["product"] for row in printed] == [row.product for row in rows]
    for row in rows:
        assert min(row.plain_us, row.fp8_us, row.casts_us) > 0
        assert row.ratio == row.plain_us / (row.fp8_us + row.casts_us)
    fp8_attention.run(sizes)
    assert "scores: codes with themselves" in capsys.readouterr().out
