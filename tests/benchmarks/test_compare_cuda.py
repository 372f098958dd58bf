"""Tests compare_peers_cuda.py on the CPU with tiny tensors of every kind, and the gradients it makes."""

from __future__ import annotations

import importlib
import json
import logging
import pathlib
import sys
from typing import Any

import pytest
import torch

CPU = torch.device("cpu")


def tensors() -> Any:
    """Returns a vector, a table of tokens, two tensors of experts, an adapter, and a vector in rows."""
    workloads = importlib.import_module("workloads")
    rule = workloads.RowRule
    return [
        workloads.Tensor((64,)),
        workloads.Tensor((1000, 8), rule(8, 1000, 1000, 50)),
        workloads.Tensor((16, 4, 8), rule(32, 16, 14, 5)),
        workloads.Tensor((16, 8, 4), rule(32, 16, 14, 5)),
        workloads.Tensor((2, 8), rule(8, 2, 0, 0)),
        workloads.Tensor((8, 2), None, zero_weights=True),
        workloads.Tensor((1007,), rule(10, 101, 50, 0)),
    ]


def test_the_command_prints_the_rows() -> None:
    workloads, harness = (importlib.import_module(name) for name in ("workloads", "harness"))

    def load(*arguments: Any) -> Any:
        return workloads.load_tensors(harness.octavo_command(), *arguments)

    rule = workloads.RowRule
    assert load("flat", 5000, 0.5) == [workloads.Tensor((5000,), rule(1024, 5, 2, 0))]
    assert load("gpt2-embedding", 1, 0) == [workloads.Tensor((50257, 768), rule(768, 50257, 50257, 512))]
    a, b = load("lora", 1, 0)[:2]
    assert (a.rule.alive, b.rule, a.zero_weights, b.zero_weights) == (0, None, False, True)
    with pytest.raises(SystemExit, match="--shape: got 'cube'"):
        load("cube", 1, 0)


def rows_with(grad: torch.Tensor, row: int) -> list[bool]:
    return [bool((part != 0).any()) for part in grad.reshape(-1).split(row)]


def test_gradients_reach_the_rows_of_their_batch() -> None:
    workload = importlib.import_module("workloads").Workload(tensors(), torch.float32, CPU)
    assert workload.changes
    places = [param.grad.data_ptr() for param in workload.params]
    seen = []
    for _ in range(2):
        vector, table, first, second, a, b, flat = (param.grad for param in workload.params)
        assert (vector != 0).all()
        assert 10 < sum(rows_with(table, 8)) <= 50
        assert rows_with(first, 32) == rows_with(second, 32)
        assert 1 <= sum(rows_with(first, 32)) <= 5
        assert not any(rows_with(a, 8))
        assert (b != 0).all()
        assert sum(rows_with(flat, 10)) == 50
        assert not flat.signbit()[flat == 0].any()
        seen.append((rows_with(table, 8), rows_with(flat, 10)))
        workload.refill()
    assert seen[0][0] != seen[1][0]
    assert seen[0][1] == seen[1][1]
    assert [param.grad.data_ptr() for param in workload.params] == places
    assert not workload.params[5].any()
    assert workload.params[4].all()


def test_the_complete_script(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    compare = importlib.import_module("compare_peers_cuda")
    asked: list[tuple[str, float]] = []

    def load(_: pathlib.Path, shape: str, numel: int, zeros: float) -> Any:
        asked.append((shape, zeros))
        return tensors()

    monkeypatch.setattr(compare, "load_tensors", load)

    def run(*options: str) -> str:
        counts = ["--repeat", "1", "--warm-up", "1", "--settle", "2", "--command", sys.executable]
        arguments = ["--device", "cpu", "--dtype", "bf16", *counts, *options]
        monkeypatch.setattr(sys, "argv", ["compare_peers_cuda.py", *arguments])
        try:
            assert compare.main() == 0
        finally:
            logging.disable(logging.NOTSET)
        return capsys.readouterr().out

    found = json.loads(run("--workload", "moe", "--side", "octavo,torch fused", "--json"))
    assert found["missing"] == {}
    assert [result["error"] for result in found["results"]] == [""] * len(found["results"])
    sides = {result["side"] for result in found["results"]}
    assert {"octavo fp32", "octavo bf16", "octavo 8bit", "octavo.optim 4bit", "torch fused"} <= sides
    base = ["--base", "torch fused"]
    printed = run("--workload", "flat,moe", "--zeros", "0,0.5", "--side", "octavo 4bit,torch fused", *base)
    assert asked == [("moe", 0.0), ("flat", 0.0), ("flat", 0.5), ("moe", 0.0), ("moe", 0.5)]
    assert "flat, zeros 0.5 ms | x of torch fused" in printed
    assert "| octavo 4bit | " in printed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--zeros", "2"], "expected shares from 0 to 1"),
        (["--zeros", "x"], "expected shares from 0 to 1"),
        (["--workload", "cube"], "gpt2-embedding"),
        (["--base", "x", "--device", "cpu", "--command", sys.executable], "torch fused"),
        (["--settle", "0", "--device", "cpu", "--command", sys.executable], "at least 1"),
    ],
)
def test_wrong_options_are_named(
    options: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["compare_peers_cuda.py", *options])
    with pytest.raises(SystemExit):
        importlib.import_module("peers_cuda_options").parse_options("")
    error = capsys.readouterr().err
    assert options[0] in error
    assert words in error
