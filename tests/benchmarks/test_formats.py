"""Tests benchmarks/convergence/formats.py with tiny models: its runs, its results file and its tables."""

from __future__ import annotations

import math
import pathlib
import random
import re

import formats
import pytest
import records
import torch

SIZES = [
    *("--vocabulary", "50", "--layers", "1", "--heads", "2", "--width", "16", "--block", "8"),
    *("--batch", "4", "--steps", "12", "--warm-up", "3", "--device", "cpu"),
]
ALL = ["fp32", "torch", "8bit", "fp8", "4bit", "fp4", "fp3"]


@pytest.fixture
def call(tmp_path: pathlib.Path) -> list[str]:
    """Returns the arguments of a run of tiny models, without those that choose the runs."""
    source = random.Random(7)
    text = tmp_path / "text.txt"
    text.write_text(" ".join(source.choice(["one", "two", "three", "four"]) for _ in range(400)))
    return ["run", "--text", str(text), "--results", str(tmp_path / "runs.jsonl"), *SIZES]


def results_of(call: list[str]) -> pathlib.Path:
    return pathlib.Path(call[call.index("--results") + 1])


def test_every_format_has_a_finite_loss_and_fp32_equals_itself(
    call: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    results, choice = results_of(call), ["--seeds", "1", "--lrs", "1e-2"]
    assert formats.main([*call, *choice]) == 0
    found = {formats.key_of(record): record["loss"] for record in records.load(results)}
    assert list(found) == [(task, state, 0.999, 1e-2, 0) for task in ("zipf", "char") for state in ALL]
    for task in ("zipf", "char"):
        losses = {state: found[task, state, 0.999, 1e-2, 0] for state in ALL}
        assert all(map(math.isfinite, losses.values()))
        assert losses["torch"] == pytest.approx(losses["fp32"], abs=1e-4)
        assert len({losses[state] for state in ALL if state != "torch"}) == len(ALL) - 1
        assert all(losses[state] == pytest.approx(losses["fp32"], abs=0.5) for state in ALL)
    # A second file has the same loss of fp32, to the last bit.
    results.unlink()
    assert formats.main([*call, *choice, "--formats", "fp32"]) == 0
    for record in records.load(results):
        assert record["loss"] == found[formats.key_of(record)]
    assert "| 4bit |" not in capsys.readouterr().out.rpartition("fp32 (reference)")[2]


def test_a_second_call_trains_only_the_missing_runs(
    call: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    results = results_of(call)
    call += ["--tasks", "char", "--formats", "fp32,fp4", "--lrs", "1e-2"]
    assert formats.main([*call, "--seeds", "1", "--time-limit", "0"]) == 1
    assert "0 of 2 runs are done\ntime is up: 2 runs are left" in capsys.readouterr().err
    assert not results.exists()
    assert formats.main([*call, "--seeds", "1"]) == 0
    first = results.read_bytes()
    assert formats.main([*call, "--seeds", "1"]) == 0
    assert results.read_bytes() == first
    capsys.readouterr()
    assert formats.main([*call, "--seeds", "2", "--lrs", "1e-2,2e-2", "--beta2", "0.999,0.99"]) == 0
    assert "2 of 16 runs are done" in capsys.readouterr().err
    assert results.read_bytes().startswith(first)
    known = records.load(results)
    assert len({formats.key_of(record) for record in known}) == len(known) == 16
    assert [record["seed"] for record in known] == [0] * 8 + [1] * 8
    with pytest.raises(ValueError, match="holds runs with steps=12, and this one has steps=13"):
        formats.main([*call, "--steps", "13"])


def test_the_table_has_differences_to_fp32(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "runs.jsonl"
    losses: dict[tuple[str, float], list[float | None]] = {
        ("4bit", 1e-3): [2.25, math.nan],
        ("fp32", 1e-3): [2.0, 3.0, 4.0],
        ("fp32", 5e-4): [2.5],
        ("torch", 1e-3): [2.0, 2.9],
    }
    for (state, lr), values in losses.items():
        for seed, loss in enumerate(values):
            key = {"task": "zipf", "state": state, "beta2": 0.999, "lr": lr, "seed": seed, "loss": loss}
            records.append(results, {**key, "settings": {"steps": 12, "device": "cpu"}})
    assert formats.main(["report", "--results", str(results)]) == 0
    title, table = capsys.readouterr().out.split("\n\n")[1:]
    assert title == "zipf, beta2 0.999, 12 steps, cpu:"
    assert table.splitlines() == [
        "| states | lr 0.0005 | lr 0.001 |",
        "|---|---|---|",
        "| fp32 (reference) | 2.5000 (2.5000) | 3.0000 (2.0000, 3.0000, 4.0000) |",
        "| torch fused AdamW (null) | - | -0.0500 (+0.0000, -0.1000) |",
        "| 4bit | - | n/a (+0.2500, n/a) |",
    ]


def test_learning_rates_rise_and_only_char_falls() -> None:
    zipf, char = (formats.learning_rates(name, formats.TASKS[name], 1e-3) for name in ("zipf", "char"))
    assert len(zipf) == 500
    assert zipf[0].item() == pytest.approx(1e-3 / 50)
    assert torch.equal(zipf[49:], torch.full((451,), 1e-3))
    assert len(char) == 600
    assert char[300].item() == pytest.approx(5e-4)
    assert 0 < char[-1].item() < 1e-8


def test_wrong_calls_are_named(
    call: list[str], capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    assert formats.main(["report", "--results", str(tmp_path / "none.jsonl")]) == 1
    assert "contains no finished run" in capsys.readouterr().err
    for options, words in (
        (["run", "--results", "r.jsonl"], "--text is missing: the task char needs one"),
        ([*call, "--formats", "7bit"], "got '7bit', expected some of fp32"),
        ([*call, "--batch", "0"], "--batch: got 0, expected at least 1"),
    ):
        with pytest.raises(SystemExit):
            formats.main(options)
        assert re.search(re.escape(words), capsys.readouterr().err)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_graphs_train_as_the_cpu_does(call: list[str]) -> None:
    results, losses = results_of(call), []
    for device in ("cpu", "cuda"):
        assert formats.main([*call, "--seeds", "1", "--precision", "fp32", "--device", device]) == 0
        losses.append([record["loss"] for record in records.load(results) if record["task"] == "char"])
        results.unlink()
    assert losses[1] == pytest.approx(losses[0], abs=5e-3)
