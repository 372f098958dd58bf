"""Runs transcribe.py and transformers with a tiny model."""

from __future__ import annotations

import importlib
import json
import pathlib
import sys

import pytest

TINY = [
    *("--size", "tiny", "--clips", "2", "--seconds", "2", "--batches", "1", "--device", "cpu"),
    *("--precision", "fp32"),
]


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_both_sides_in_one_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    if not hasattr(transformers, "ParakeetForTDT"):
        pytest.skip("this transformers has no ParakeetForTDT")
    if not importlib.import_module("harness").octavo_command().with_name("octavo-trainer").exists():
        pytest.skip("this build has no octavo-trainer (LibTorch)")
    script, file = importlib.import_module("transcribe"), tmp_path / "found.json"
    monkeypatch.setattr(sys, "argv", ["transcribe.py", *TINY, "--json", str(file)])
    assert script.main() == 0
    rows = json.loads(file.read_text())["rows"]
    assert [row["side"] for row in rows] == ["transformers fp32, from features", "octavo, from memory"]
    for row in rows:
        assert row["error"] == ""
        assert row["clips"] == 2
        assert row["times_real_time"] > 0
        assert 0 < row["tokens_per_second"] < 20
    assert capsys.readouterr().out.count("\n| octavo, from memory | 2 | ") == 1


def test_a_side_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = importlib.import_module("transcribe")
    monkeypatch.setattr(sys, "argv", ["transcribe.py", *TINY, "--side", "octavo", "--command", "false"])
    assert script.main() == 1
    assert "false failed" in capsys.readouterr().out
