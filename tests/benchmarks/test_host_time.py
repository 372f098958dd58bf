"""Tests host_time.py with --offload and --schedule: every side has a row, and does its work."""

from __future__ import annotations

import importlib
import sys

import pytest


def test_offload_rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = importlib.import_module("host_time")
    monkeypatch.setattr(script, "LAYERS", 3)
    monkeypatch.setattr(sys, "argv", ["host_time.py", "--offload", "--clip", "--repeat", "1"])
    script.main()
    first, passes, *rows = capsys.readouterr().out.splitlines()
    assert "3 layers" in first
    assert passes.startswith("passes alone: ")
    assert [row[:36].strip() for row in rows] == list(script.OFFLOADED)


def test_schedule_rows(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = importlib.import_module("host_time")
    monkeypatch.setattr(script, "TENSORS", 3)
    monkeypatch.setattr(script, "ROUNDS", 2)
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    monkeypatch.setitem(sys.modules, "torchao.prototype.low_bit_optim", None)
    monkeypatch.setattr(sys, "argv", ["host_time.py", "--schedule", "--repeat", "2"])
    script.main()
    rows = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert [row[0] for row in rows] == ["| torch fused", "| octavo 8bit", "| torchao 8bit"]
    assert all(float(cell) > 0 for row in rows[:2] for cell in row[1:4])
    assert rows[2][1].startswith("skipped: ")


def test_a_scheduled_rate_changes_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    script = importlib.import_module("host_time")
    monkeypatch.setattr(script, "TENSORS", 2)
    for name, changes in (("torch fused", False), ("octavo 8bit", True)):
        rates = []
        side = script.Scheduled(script.SCHEDULED[name], "cpu", 10, changes)
        for _ in range(4):
            assert side.step_us() > 0
            rates.append(side._optimizer.param_groups[0]["lr"])
        assert len(set(rates)) == (4 if changes else 1)
