"""Tests plan_pairs.py: the output of a dry run, the summary, and real plans of speech."""

from __future__ import annotations

import json
import os
import pathlib

import plan_pairs
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("OCTAVO_COMMAND", str(ROOT / "build/bin/octavo"))


def test_the_line_of_a_dry_run() -> None:
    printed = "speed: 3\nplan: 950 MB, measured 1.00 GB (-5.0%); 1.1 s a step, measured 999.9 ms (+10.0%)\n"
    pair = plan_pairs.pair_of("x", printed)
    assert pair.memory_off == pytest.approx(-5)
    assert pair.time_off == pytest.approx(10, abs=0.1)
    assert pair.line() == "| x | 0.95 | 1.00 | -5.0% | 1100 | 1000 | +10% |"
    with pytest.raises(ValueError, match="printed no plan"):
        plan_pairs.pair_of("x", "octavo: no GPU")


def test_a_summary_counts_large_differences() -> None:
    pairs = [plan_pairs.Pair("a", 1.0, 1.0, 1.0, 1.0), plan_pairs.Pair("b", 1.1, 1.0, 2.0, 1.0)]
    text = plan_pairs.summary(pairs)
    assert "2 pairs; memory: median 5.0%, worst 10.0%" in text
    assert "1 beyond 15%" in text


def test_medians_of_several_rounds_count(tmp_path: pathlib.Path) -> None:
    """Three rounds take 9, 2 and 3 ms and are planned at 4, 6 and 5 ms."""
    command = tmp_path / "octavo"
    command.write_text(
        "#!/bin/sh\n"
        'next() { n=$(cat "$0.$1" 2>/dev/null || echo 0); echo $((n + 1)) > "$0.$1"; shift $((n + 1)); '
        "at=$1; }\n"
        'case "$*" in plan*) next plan 4 6 5; echo "{\\"memory\\": {\\"step\\": {\\"allocated\\": 1e9}}, '
        '\\"time\\": {\\"step_seconds\\": 0.00$at}}"; exit;; esac\n'
        "next bench 9 2 3\n"
        'echo "{\\"rows\\": [{\\"optimizer\\": \\"a\\", \\"checkpointing\\": \\"on\\", \\"clips\\": 8, '
        '\\"memory\\": {\\"peak\\": 1e9}, \\"step_ms\\": $at}]}"\n'
    )
    command.chmod(0o755)
    rounds = plan_pairs.speech_rounds(str(command), [], 3)
    (pair,) = plan_pairs.speech_pairs(str(command), "h200", rounds, fp8=False)
    assert (pair.planned_ms, pair.measured_ms) == (pytest.approx(5), 3)


def test_measured_rows_of_speech_are_planned(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """32 clips with 8-bit states had a peak of 18.37 GB on an H200."""
    row = {"optimizer": "adamw_8bit", "checkpointing": "off", "clips": 32, "step_ms": 137.1}
    measured = tmp_path / "measured.json"
    measured.write_text(json.dumps({"rows": [{**row, "memory": {"peak": 18.37e9}}]}))
    none = tmp_path / "none.json"
    none.write_text('{"rows": []}')
    words = ["--text", "x", "--only", "speech", "--gpu", "h200", "--command", COMMAND]
    (pair,) = plan_pairs.run([*words, "--measured-speech", str(measured), "--measured-fp8", str(none)])
    assert abs(pair.memory_off) < 1
    assert abs(pair.time_off) < 15
    assert "1 pairs; memory: median" in capsys.readouterr().out
