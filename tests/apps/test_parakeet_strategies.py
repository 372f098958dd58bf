"""Tests benchmarks/parakeet_strategies.py with a tiny model on the CPU: every strategy runs, and its
table."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("OCTAVO_BIN") or os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build/bin/octavo")
TINY = ["--size=tiny", "--clips=2", "--seconds=1", "--tokens=4", "--device=cpu", "--steps=1", "--rounds=1"]

pytestmark = pytest.mark.skipif(
    not pathlib.Path(BINARY).with_name("octavo-trainer").exists(),
    reason="this build has no octavo-trainer (LibTorch)",
)


def strategies(*options):
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/parakeet_strategies.py"), "--command", BINARY, *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_strategy_runs(tmp_path):
    file = tmp_path / "found.json"
    done = strategies(*TINY, "--json", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(file.read_text())["rows"]
    listed = [line.partition(": ")[0] for line in strategies("--list").stdout.splitlines()]
    assert list(rows) == listed
    assert len(rows) == 12
    states = {name: row["memory"]["states"] for name, row in rows.items()}
    assert states["8-bit AdamW"] < states["adamw"]
    for name, row in rows.items():
        assert (row["memory"]["host"] > 0) == ("offload" in name), name
        assert row["checkpointing"] == ("on" if "checkpointing" in name else "off")
    plain, more = rows["8-bit AdamW"], rows["8-bit + accumulation 6"]
    assert more["memory"]["gradients"] > plain["memory"]["gradients"]  # fp32 sums of bf16 gradients
    table = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert table[0].endswith("| speed | hours for 5.2M clips | hours for 100k clips |")
    assert len(table) == 13
    first = table[1].split(" | ")
    assert first[0] == "| adamw"
    assert first[4] == "100%"
    speed = rows["adamw"]["clips_per_second"]
    assert first[5:] == [f"{5.2e6 / speed / 3600:.2f}", f"{1e5 / speed / 3600:.2f} |"]


def test_a_strategy_that_fails_is_named():
    done = strategies(*TINY, "--rows=8-bit AdamW", "--device=cuda:99")
    assert done.returncode == 1
    assert "| 8-bit AdamW | failed: octavo: " in done.stdout
    done = strategies("--rows=3-bit")
    assert done.returncode == 2
    assert "--rows: got '3-bit', expected a part of one of adamw, 8-bit AdamW" in done.stderr
