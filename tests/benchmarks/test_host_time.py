"""host_time.py with --offload: a row for each way, and that the work is done."""

from __future__ import annotations

import importlib
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_offload_rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = importlib.import_module("host_time")
    monkeypatch.setattr(script, "LAYERS", 3)
    monkeypatch.setattr(sys, "argv", ["host_time.py", "--offload", "--clip", "--repeat", "1"])
    script.main()
    first, passes, *rows = capsys.readouterr().out.splitlines()
    assert "3 layers" in first
    assert passes.startswith("passes alone: ")
    assert [row[:36].strip() for row in rows] == list(script.OFFLOADED)
