"""Runs fp8_linear.py with tiny layers: every side has a row, and every part has a time."""

from __future__ import annotations

import json
import os

import pytest

os.environ.setdefault("OCTAVO_FP8_REFERENCE", "1")
import fp8_linear

TINY = ["--device", "cpu", "--shapes", "48x32x64,37x32x32", "--repeat", "2", "--warm-up", "1", "--peers", ""]


@pytest.mark.parametrize("recipe", ["delayed", "block"])
def test_sides_and_parts_have_times(recipe: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = fp8_linear.run([*TINY, "--recipe", recipe, "--json"])
    assert [row.side for row in report.rows] == ["bf16", "octavo always", "octavo measure"] * 2
    assert all(row.ms > 0 and row.host_forward_us > 0 for row in report.rows)
    assert [row.passes for row in report.rows[:2]] == ["", "forward+dgrad+wgrad"]
    printed = json.loads(capsys.readouterr().out)
    assert [part["shape"] for part in printed["parts"]] == ["48x32x64", "37x32x32"]
    for part in report.parts:
        for times in (part.plain_us, part.fp8_us, part.cast_us, part.cast_gb_s, part.copy_gb_s):
            assert len(times) == 3
            assert all(value > 0 for value in times.values())


def test_a_table_for_readers(capsys: pytest.CaptureFixture[str]) -> None:
    fp8_linear.run(TINY)
    out = capsys.readouterr().out
    assert "octavo always" in out
    assert "native host us" in out
