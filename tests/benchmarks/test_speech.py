"""Runs speech.py and transformers with a tiny model, and tests the message of a side that fails."""

from __future__ import annotations

import importlib
import json
import pathlib
import sys

import pytest

TINY = [
    *("--size", "tiny", "--clips", "2", "--seconds", "0.5", "--tokens", "3", "--device", "cpu"),
    *("--precision", "fp32", "--steps", "1", "--peer-steps", "1", "--warm-up", "0"),
]


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def trainer() -> pathlib.Path:
    return importlib.import_module("harness").octavo_command().with_name("octavo-trainer")


def test_both_sides_in_one_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    if not hasattr(transformers, "ParakeetForTDT"):
        pytest.skip("this transformers has no ParakeetForTDT")
    if not trainer().exists():
        pytest.skip("this build has no octavo-trainer (LibTorch)")
    script, file = importlib.import_module("speech"), tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["speech.py", *TINY, "--checkpointing", "off,on", "--json", str(file)])
    assert script.main() == 0
    rows = json.loads(file.read_text())["rows"]
    sides = [(row["side"], row["checkpointing"]) for row in rows]
    assert sides == [
        *(("transformers fp32", each) for each in ("off", "on")),
        *(("octavo adamw_8bit", each) for each in ("off", "on")),
    ]
    for row in rows:
        assert row["error"] == ""
        assert len(row["parts_ms"]) == len(script.PARTS)
        assert all(part > 0 for part in row["parts_ms"]), row
        assert sum(row["parts_ms"]) <= row["step_ms"] * 1.01
        assert row["clips_per_second"] == pytest.approx(2e3 / row["step_ms"])
    printed = capsys.readouterr().out
    assert printed.count("\n| transformers fp32 | ") == 2
    assert printed.count("\n| octavo adamw_8bit | ") == 2


def test_a_side_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = importlib.import_module("speech")
    arguments = ["speech.py", *TINY, "--side", "octavo", "--command", "false"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert script.main() == 1
    assert "false failed" in capsys.readouterr().out
