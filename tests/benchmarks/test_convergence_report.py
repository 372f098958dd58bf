"""Tests how benchmarks/convergence reports finished runs: the statistics, the table and the file."""

from __future__ import annotations

import math
import pathlib

import arms
import pytest
import records
import summary
import tost


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [
        (1, 6.313752),
        (2, 2.919986),
        (3, 2.353363),
        (4, 2.131847),
        (7, 1.894579),
        (9, 1.833113),
        (30, 1.697261),
    ],
)
def test_students_quantiles_are_those_of_the_tables(degrees: int, quantile: float) -> None:
    assert tost.student_quantile(0.95, degrees) == pytest.approx(quantile, abs=1e-6)


def test_students_distribution() -> None:
    assert tost.student_cdf(0.0, 5) == 0.5
    assert tost.student_cdf(-1.0, 1) == pytest.approx(0.25)
    assert tost.student_cdf(2.570582, 5) == pytest.approx(0.975, abs=1e-7)
    assert tost.student_cdf(3.169273, 10) == pytest.approx(0.995, abs=1e-7)


DIFFERENCES = [
    0.001,
    0.002,
    0.003,
    0.004,
    0.005,
]  # mean 0.003, deviation 0.0015811, half the interval 0.0015074


@pytest.mark.parametrize(
    ("margin", "verdict"),
    [(0.005, "equivalent"), (0.0045, "not shown"), (0.0016, "not shown"), (0.0014, "worse")],
)
def test_equivalence_is_the_interval_inside_the_margin(margin: float, verdict: str) -> None:
    found = tost.compare(DIFFERENCES, margin)
    assert (found.pairs, found.mean) == (5, pytest.approx(0.003))
    assert found.low == pytest.approx(0.0014926, abs=1e-7)
    assert found.high == pytest.approx(0.0045074, abs=1e-7)
    assert found.verdict == verdict
    mirrored = tost.compare([-d for d in DIFFERENCES], margin)
    assert mirrored.verdict == {"worse": "better", "not shown": "not worse"}.get(verdict, verdict)


def test_inconclusive_differences() -> None:
    assert tost.compare([0.0, 0.02, -0.02, 0.01], 0.005).verdict == "not shown"  # mean 0.0025, but scattered
    assert tost.compare([0.0, 0.0], 0.005).verdict == "too few"
    assert tost.compare([], 0.005).verdict == "too few"
    assert tost.compare([0.0, math.nan, 0.0], 0.005).verdict == "diverged"
    assert tost.compare([0.0, math.inf], 0.005).verdict == "diverged"


def record(arm: str, seed: int, loss: float | None, beta2: float = 0.99) -> records.Record:
    return {
        "arm": arm,
        "seed": seed,
        "beta2": beta2,
        "loss": loss,
        "steps": [10, 20],
        "validation": [3.0, loss],
        "train": [3.0, loss],
        "init": "0",
        "data": f"{seed}",
        "settings": {"vocabulary": 65},
    }


@pytest.mark.parametrize("loss_of_bad", [None, 4.2])  # ln 65 is 4.17
def test_differences_are_of_the_same_seed(loss_of_bad: float | None) -> None:
    """Seeds differ by far more than arms; a seed without a reference does not count."""
    base = [1.5, 1.6, 1.7, 1.4]
    found = summary.rows(
        [record("8bit", seed, loss + 0.001) for seed, loss in enumerate(base)]
        + [record("8bit", 9, 99.0), record(arms.BAD, 0, 1.5), record(arms.BAD, 1, loss_of_bad)]
        + [record("fp32", seed, loss) for seed, loss in enumerate(base)],
        0.005,
    )
    reference, eight, bad = found
    assert [row.arm for row in found] == ["fp32", "8bit", arms.BAD]
    assert (reference.runs, reference.comparison, reference.mean_loss) == (4, None, pytest.approx(1.55))
    assert eight.comparison is not None
    assert (eight.runs, eight.comparison.mean) == (4, pytest.approx(0.001))
    assert (eight.comparison.high - eight.comparison.low, summary.verdict(eight)) == (
        pytest.approx(0.0, abs=1e-12),
        "equivalent",
    )
    assert summary.verdict(bad) == "diverged (caught)"
    assert "| 8bit | 0.99 | 4 | 1.5510 | +0.0010 | +0.0010 to +0.0010 | equivalent |" in summary.table(found)


def test_a_bad_arm_that_is_not_caught_is_reported() -> None:
    known = [record(arm, seed, 1.5) for arm in ("fp32", arms.BAD) for seed in range(4)]
    found = summary.rows(known, 0.005)
    assert summary.verdict(found[1]) == "equivalent (**not caught**)"
    assert any("known-bad arm is not caught" in line for line in summary.remarks(found, known, 0.005))


def test_a_pair_of_different_starts_is_refused() -> None:
    mine, reference = record("8bit", 0, 2.0), record("fp32", 0, 2.0)
    mine["init"] = "00000001"
    with pytest.raises(ValueError, match="arm 8bit, seed 0: init differs"):
        summary.rows([mine, reference], 0.005)


def test_a_line_that_was_cut_short_is_replaced(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "runs.jsonl"
    records.append(path, record("fp32", 0, 1.5))
    records.append(path, record("8bit", 0, math.nan))
    path.write_bytes(path.read_bytes() + b'{"arm": "4bit", "se')
    assert [r["arm"] for r in records.load(path)] == ["fp32", "8bit"]
    records.append(path, record("fp8", 0, 1.5))
    assert [(r["arm"], r["loss"]) for r in records.load(path)] == [
        ("fp32", 1.5),
        ("8bit", None),
        ("fp8", 1.5),
    ]
    path.write_text("{broken\n" + path.read_text())
    with pytest.raises(ValueError, match="line 1: not a JSON object"):
        records.load(path)
