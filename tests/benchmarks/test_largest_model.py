"""Tests largest_model.py on the CPU with tiny models: its two tables, and the sizes of its models."""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import sys
from typing import Any

import pytest
import torch

TINY = ["--width", "64", "--heads", "2", "--vocabulary", "100", "--tokens", "8", "--repeat", "1"]


@pytest.fixture
def script() -> Any:
    return importlib.import_module("largest_model")


def test_sizes(script: Any) -> None:
    options = argparse.Namespace(**script.SIZES)
    for billions in (1, 2, 4, 8):
        layers = script.layers_for(1e9 * billions, options)
        with torch.device("meta"):
            params = sum(p.numel() for p in script.Transformer(layers, options).parameters())
        assert abs(params / 1e9 - billions) < 0.11


def test_tables(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    def run_row(_file: str, arguments: list[str], _limit: float) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["largest_model.py", *arguments])
        options = script.parse_options()
        if options.size > 0.0002 and options.one == "octavo 8bit":
            raise script.RowError("out of memory")
        return {**script.run(options.one, options), "peak_gb": 1e4 * options.size}

    monkeypatch.setattr(script, "run_row", run_row)
    file = tmp_path / "found.json"
    rows = ["--rows", "torch fused,octavo 8bit", "--billions", "0.0003,0.0001", "--memory", "0.5,2,9"]
    monkeypatch.setattr(
        sys, "argv", ["largest_model.py", "--device", "cpu", *TINY, *rows, "--json", str(file)]
    )
    assert script.main() == 0
    printed = capsys.readouterr().out
    assert "| states | 0.0001 | 0.0003 |" in printed
    assert "| octavo 8bit | 1.0 (" in printed
    assert "| failed: out of memory |" in printed
    assert "| torch fused | - | 0.0 | ≥ 0.0 |" in printed
    cells = json.loads(file.read_text())["cells"]
    assert len(cells) == 4
    assert cells[0]["losses"][1] < cells[0]["losses"][0]  # it trains
    assert cells[1]["params"] > 2 * cells[0]["params"]


def test_the_largest_model_that_fits(script: Any) -> None:
    found = [(1.0, 8.0), (2.0, 16.0), (4.0, 32.0)]
    assert [script.fits(found, room) for room in (4, 8, 12, 24, 32, 80)] == [
        "-", "1.0", "1.5", "3.0", "≥ 4.0", "≥ 4.0"
    ]  # fmt: skip
    assert script.fits([], 4) == "-"
