"""Tests how benchmarks/bdh reads training runs: metrics, statistics, table, plot, and runs that resume.

The command is a stand-in that writes metrics as `octavo train` does.
"""

from __future__ import annotations

import json
import math
import pathlib
import re
import sys
import xml.etree.ElementTree as ElementTree
from typing import Any

import bdh_settings
import figures
import octavo_runs
import precision_report
import pytest
import run_folder
import speed_report
import welch
from bdh_settings import Settings

ROOT = pathlib.Path(__file__).resolve().parents[2]

# This program trains nothing: its losses depend on optimizer and seed, so that the tests know every figure.
STAND_IN = """
import json, os, pathlib, signal, sys, time
verb, config, *rest = sys.argv[1:]
given = dict(pair.split("=", 1) for pair in rest)
folder = pathlib.Path(given["output_dir"])
folder.mkdir(parents=True, exist_ok=True)
with open(folder.parent / "calls.txt", "a") as calls:
    calls.write(folder.name + "\\n")
metrics = open(folder / "metrics.jsonl", "a")
def write(**record):
    metrics.write(json.dumps(record) + "\\n")
    metrics.flush()
def stopped(*_):
    write(kind="end", step=1, reason="interrupted", seconds=1.0, overhead=0.5)
    sys.exit(0)
signal.signal(signal.SIGTERM, stopped)
write(kind="start", step=0, model="bdh", batch_tokens=1000)
fp8 = 500_000_000 * (given.get("use_fp8") == "true")
owners = {{"params": 2_000_000_000, "states": 800_000_000, "master": 1_000_000_000, "fp8": fp8}}
if fp8:
    passes = "forward fp8 (40.0 us in fp8, 100.0 plain), dgrad fp8 (50.0 us in fp8, 100.0 plain), "
    passes += "wgrad plain (90.0 us in fp8, 80.0 plain); casts of x 10.0, w 60.0, dy 20.0 us"
    write(kind="fp8", step=1, message="fp8: 4 x [up to 8 tokens, 16] with [16, 32], one input: " + passes)
    write(kind="fp8", step=1, message="fp8: a product of 3 x 5 stays as it is")
write(kind="memory", step=2, owners=owners, device_peak=2_000_000_000)
if given["optimizer"] == "{slow}":
    time.sleep(3600)
if given["optimizer"] == "{broken}":
    print("octavo: no room", flush=True)
    sys.exit(3)
base = {{"adamw": 1.5, "adamw_8bit": 1.5, "adamw_4bit": 1.8}}[given["optimizer"]]
base += 0.01 * int(given["training.seed"]) + 0.001 * (given["compute_dtype"] == "bfloat16")
for step in (10, 20, 30):
    rate = {{10: 1e-3, 20: 5.5e-4, 30: 1e-4}}[step]
    memory = {{"device": 1, "device_peak": 2_000_000_000 + step, "host": 3}}
    write(kind="train", step=step, loss=2.0, lr=rate, tokens_per_second=100.0 * step, memory=memory)
    write(kind="eval", step=step, loss=base + (30 - step) / 10)
write(kind="end", step=30, reason="finished", seconds=3.0, overhead=0.004)
"""


def stand_in(folder: pathlib.Path, slow: str = "", broken: str = "") -> pathlib.Path:
    program = folder / "octavo.py"
    program.write_text(STAND_IN.format(slow=slow, broken=broken))
    path = folder / "octavo"  # a shell script, because an interpreter path after #! cannot contain spaces
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}" "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture
def text(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "text.txt"
    path.write_text("all work and no play\n" * 50)
    return path


def loss(tmp_path: pathlib.Path, text: pathlib.Path, command: pathlib.Path, *more: str) -> int:
    runs = ["--runs", str(tmp_path / "runs"), "--text", str(text), "--command", str(command)]
    return figures.main(["loss", *runs, *more])


def calls(tmp_path: pathlib.Path) -> list[str]:
    return (tmp_path / "runs/calls.txt").read_text().split()


def written(folder: pathlib.Path, *lines: dict[str, Any]) -> run_folder.Run:
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run_folder.read(folder)


# --- Metrics ------------------------------------------------------------------------------------------------

START = {"kind": "start", "step": 0, "batch_tokens": 512}


def end(step: int, reason: str) -> dict[str, Any]:
    return {"kind": "end", "step": step, "reason": reason, "overhead": 0.01}


def test_a_run_is_done_when_its_last_start_has_ended(tmp_path: pathlib.Path) -> None:
    assert not run_folder.read(tmp_path / "none").done
    assert not written(tmp_path, START).done
    assert not written(tmp_path, START, end(5, "interrupted")).done
    assert written(tmp_path, START, end(5, "interrupted"), START, end(9, "finished")).done
    assert not written(tmp_path, START, end(9, "finished"), START).done
    assert not written(tmp_path, START, end(5, "failed")).done


def test_losses_come_from_evaluations_and_a_diverged_run_has_none(tmp_path: pathlib.Path) -> None:
    evals = [{"kind": "eval", "step": step, "loss": loss} for step, loss in ((10, 2.0), (20, 1.5))]
    run = written(tmp_path, START, *evals, {"kind": "sample", "step": 20, "text": "x"}, end(20, "finished"))
    assert (run.loss, run.validation) == (1.5, {10: 2.0, 20: 1.5})
    run = written(tmp_path, START, *evals, end(25, "diverged"))
    assert run.done
    assert math.isnan(run.loss)
    run = written(tmp_path, START, {"kind": "eval", "step": 10, "loss": None}, end(10, "finished"))
    assert math.isnan(run.loss)


def test_speed_is_the_median_after_the_warm_up(tmp_path: pathlib.Path) -> None:
    speeds = {10: 1.0, 20: 100.0, 30: 300.0, 40: 200.0}
    lines: list[dict[str, Any]] = [
        {"kind": "train", "step": step, "lr": 1e-3, "tokens_per_second": speed}
        for step, speed in speeds.items()
    ]
    lines[1]["memory"] = {"device_peak": 5_000_000_000}
    peak = {"kind": "memory", "step": 2, "owners": {}, "device_peak": 4_000_000_000}
    run = written(tmp_path, START, peak, *lines, end(40, "finished"))
    timing = speed_report.timing_of("octavo", run, warm_up=10)
    assert (timing.tokens_per_second, timing.milliseconds) == (200.0, 2560.0)
    assert timing.line() == "| octavo | 2560.0 | 200 | 5.00 | 1.00% |"


def test_an_incomplete_last_line_is_skipped_and_a_wrong_record_named(tmp_path: pathlib.Path) -> None:
    written(tmp_path, START)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "eval", "st')
    assert run_folder.read(tmp_path).start == START
    with pytest.raises(ValueError, match=r"metrics\.jsonl, record 2: KeyError\('loss'\)"):
        written(tmp_path, START, {"kind": "eval", "step": 3})


# --- Statistics ---------------------------------------------------------------------------------------------


def test_welchs_interval() -> None:
    # Variances 1 and 2.5 over 3 and 5: degrees 5.8824, t 2.45881 and standard error 0.912871.
    found = welch.compare([4, 5, 6], [1, 2, 3, 4, 5])
    assert found.mean == 2
    assert found.high - found.mean == pytest.approx(2.24458, abs=2e-4)
    assert found.low + found.high == pytest.approx(4)
    assert found.verdict == welch.WITHIN
    assert welch.compare([14, 15, 16], [1, 2, 3, 4, 5]).verdict == welch.HIGHER
    assert welch.compare([-4, -5, -6], [1, 2, 3, 4, 5]).verdict == welch.LOWER


def test_runs_that_cannot_be_compared() -> None:
    assert welch.compare([1.0], [1.0, 2.0]).verdict == welch.TOO_FEW
    assert welch.compare([], [1.0, 2.0]).verdict == welch.TOO_FEW
    assert welch.compare([1.0, math.nan], [1.0, 2.0]).verdict == welch.DIVERGED
    assert welch.compare([1.0, 1.0], [1.0, 1.0]).verdict == welch.WITHIN


# --- Settings -----------------------------------------------------------------------------------------------


def test_the_command_has_every_key_of_the_config(text: pathlib.Path) -> None:
    # The page is generated from the schema: a row begins with a key and its other names.
    rows = re.findall(r"^\|([^|]*)\|", (ROOT / "docs/config.md").read_text(), flags=re.MULTILINE)
    words = re.findall(r"`([\w.]+)`", " ".join(rows))
    known = {word.split(".")[-1] for word in words}
    keys = re.findall(r"^  (\w+): ", Settings().config(text), flags=re.MULTILINE)
    given = {key.split(".")[-1] for arm in octavo_runs.ARMS.values() for key in arm}
    assert len(keys) > 15
    assert given | set(keys) <= known


def test_the_learning_rate_rises_and_falls() -> None:
    settings = Settings(max_steps=300, warmup_steps=100, learning_rate=1e-3, min_lr=1e-4)
    rates = [settings.rate(step) for step in (1, 100, 101, 201, 300)]
    assert rates[:4] == pytest.approx([1e-5, 1e-3, 1e-3, 5.5e-4])
    assert 1e-4 < rates[4] < 1.01e-4
    assert bdh_settings.Settings(lr_scheduler="constant").rate(2999) == 1e-3


# --- Runs ---------------------------------------------------------------------------------------------------


def test_arms_are_trained_once_and_reported(
    tmp_path: pathlib.Path, text: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, plot = stand_in(tmp_path), tmp_path / "curves.svg"
    assert loss(tmp_path, text, command, "--jobs", "3", "--svg", str(plot)) == 0
    assert len(calls(tmp_path)) == len(set(calls(tmp_path))) == 12
    out = capsys.readouterr().out
    assert "| fp32 | 3 | 1.5100 | 0.0100 |  |  |  |" in out
    row = "| bf16 adamw_8bit | 3 | 1.5110 | 0.0100 | +0.0010 (+0.07%) |"
    assert f"{row} -0.0217 to +0.0237 | within seed noise |" in out
    assert re.search(r"\| bf16 adamw_4bit \| 3 \| 1.8110 .* \| higher \|", out)
    drawing = ElementTree.fromstring(plot.read_text())
    assert len(drawing.findall("{http://www.w3.org/2000/svg}polyline")) == 8
    assert loss(tmp_path, text, command) == 0
    assert len(calls(tmp_path)) == 12


def test_a_call_that_ran_out_of_time_resumes(
    tmp_path: pathlib.Path, text: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some = ["--arms", "fp32,bf16 adamw_8bit", "--seeds", "1"]
    assert loss(tmp_path, text, stand_in(tmp_path, slow="adamw_8bit"), *some, "--time-limit", "2") == 0
    assert "time is up: 1 runs are left" in capsys.readouterr().err
    assert run_folder.read(tmp_path / "runs/bf16-adamw_8bit-seed0").reason == "interrupted"
    assert loss(tmp_path, text, stand_in(tmp_path), *some) == 0
    assert calls(tmp_path) == ["fp32-seed0", "bf16-adamw_8bit-seed0", "bf16-adamw_8bit-seed0"]


def test_a_run_that_fails_is_named_and_the_others_continue(
    tmp_path: pathlib.Path, text: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert loss(tmp_path, text, stand_in(tmp_path, broken="adamw_4bit"), "--seeds", "2") == 1
    printed = capsys.readouterr()
    assert "bf16-adamw_4bit-seed0 failed: octavo: no room" in printed.err
    assert "| bf16 adamw_8bit | 2 |" in printed.out
    assert "adamw_4bit" not in printed.out


def test_a_folder_holds_one_setting(tmp_path: pathlib.Path, text: pathlib.Path) -> None:
    some = ["--arms", "fp32", "--seeds", "1"]
    assert loss(tmp_path, text, stand_in(tmp_path), *some) == 0
    with pytest.raises(ValueError, match=r"batch_size=8, and this one has batch_size=16: .* with --runs"):
        loss(tmp_path, text, stand_in(tmp_path), *some, "--batch-size", "16")


def test_the_reference_must_have_the_same_settings_and_rates(
    tmp_path: pathlib.Path, text: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert loss(tmp_path, text, stand_in(tmp_path), "--arms", "fp32") == 0
    settings = json.loads((tmp_path / "runs/settings.json").read_text())
    record = {"arm": "reference fp32", "settings": settings, "steps": [10, 20, 30], "loss": 1.51}
    results = tmp_path / "reference.jsonl"

    def report(rates: list[float], **changes: object) -> str:
        curves = [[2.5, 2.2, 1.5], [2.5, 2.2, 1.52]]
        lines = [{**record, "seed": s, "validation": curve, "rates": rates} for s, curve in enumerate(curves)]
        for line in lines:
            line["settings"] = {**settings, **changes}
        results.write_text("".join(json.dumps(line) + "\n" for line in lines))
        where = ["--runs", str(tmp_path / "runs"), "--reference-results", str(results)]
        assert figures.main(["report", *where]) == 0
        return capsys.readouterr().out

    out = report([1e-3, 5.5e-4, 1e-4])
    assert "| arm | seeds | mean loss | sd | difference to reference fp32 | 95% interval | |" in out
    assert "| reference fp32 | 2 | 1.5100 |" in out
    assert "| fp32 | 3 | 1.5100 | 0.0100 | +0.0000 (+0.00%) |" in out
    assert "do not compare" not in out
    assert "fp32: the learning rate of step 20 is 0.00055 where reference fp32 has 0.0007" in report(
        [1e-3, 7e-4, 1e-4]
    )
    with pytest.raises(ValueError, match="block_size=64, and this one has block_size=128"):
        report([1e-3, 5.5e-4, 1e-4], block_size=64)


def test_arms_are_timed_in_one_table(
    tmp_path: pathlib.Path, text: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--runs", str(tmp_path / "runs"), "--text", str(text)]
    command = [
        "--command",
        str(stand_in(tmp_path, broken="adamw_4bit")),
        "--arms",
        "bf16 adamw,bf16 adamw_4bit",
    ]
    assert figures.main(["speed", *where, *command, "--checkpointing", "off"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| octavo bf16 adamw | 400.0 | 2500 | 2.00 | 0.40% |"
    assert lines[3] == "| octavo bf16 adamw_4bit | octavo: no room | | | |"


def test_precisions_are_compared_with_the_first_one_that_ran(
    tmp_path: pathlib.Path, text: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--runs", str(tmp_path / "runs"), "--text", str(text)]
    command = ["--command", str(stand_in(tmp_path, broken="adamw_8bit"))]
    assert figures.main(["precision", *where, *command]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[2] == "| fp32 | 3.000 | 0.800 | 2.00 | 2500 | 1.00 |  | 1.5000 |"
    assert lines[4] == "| bf16 adamw_8bit | octavo: no room | | | | | | |"
    # There are six layers, and each forward matmul occurs twice:
    # 6 (2 * 100 + 100 + 80) over 6 (2 * (40 + 10) + 50 + 20 + 80) + 60.
    assert lines[5] == "| fp8 adamw | 3.500 | 0.800 | 2.00 | 2500 | 1.00 | 1.46 | 1.5010 |"
    assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {arm}" for arm in precision_report.ARMS]
