"""Runs the scripts that compare the library with others on a CPU, once, with a small tensor."""

from __future__ import annotations

import importlib
import json
import logging
import pathlib
import sys
from typing import Any

import pytest


def run(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    harness = importlib.import_module("harness")
    monkeypatch.setattr(harness, "copy_speed", lambda _: harness.CopySpeed(10.0, "not measured"))
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--numel", "2^14", "--threads", "1", "--json", *options])
    try:
        assert importlib.import_module(name).main() == 0
    finally:
        logging.disable(logging.NOTSET)  # the scripts disable logging
    return json.loads(capsys.readouterr().out)


def test_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = run("compare_torch_cpu", monkeypatch, capsys, "--repeat", "1", "--state", "fp32,8bit")
    assert [row["state"] for row in found["rows"]] == ["fp32", "8bit"]
    assert {row["after_openmp"] for row in found["rows"]} == {None}


def test_torch_by_implementation_and_after_openmp(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--repeat", "1", "--state", "8bit", "--implementation", "scalar,", "--after-openmp")
    found = run("compare_torch_cpu", monkeypatch, capsys, *options)
    names = [row["implementation"] for row in found["rows"]]
    assert names[0] == "scalar"
    assert len(names) == 2
    assert all(row["after_openmp"] > 0 for row in found["rows"])


def test_offloaded_step_and_torch(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    file = tmp_path / "found.json"
    options = [
        "--numel",
        "2^14",
        "--threads",
        "2,1",
        "--repeat",
        "1",
        "--state",
        "8bit,4bit",
        "--json",
        str(file),
    ]
    monkeypatch.setattr(sys, "argv", ["cpu_step.py", *options])
    assert importlib.import_module("cpu_step").main() == 0
    rows = json.loads(file.read_text())["rows"]
    assert [(row["threads"], row["state"]) for row in rows] == [
        (2, "8bit"), (2, "4bit"), (1, "8bit"), (1, "4bit")
    ]  # fmt: skip
    assert rows[0]["moved_bytes_per_param"] == 3 * 2 + 2 * (2 + 2 * 4 / 256)
    assert {row["param_dtype"] for row in rows} == {"bf16"}
    assert "10.06" in capsys.readouterr().out


def test_peers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = run("compare_peers_cpu", monkeypatch, capsys, "--eager-parity", "--skip", "speed")
    assert found["absent"] == []
    assert [(row["peer"], row["state"]) for row in found["parity"]] == [
        ("torchao", "8bit"), ("torchao", "4bit"), ("torchao", "fp8"), ("bitsandbytes", "8bit")
    ]  # fmt: skip
