"""Tests `octavo bench speech`: its rows, relations between them, its tables, and rejected options. No time
is asserted."""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("OCTAVO_BIN") or os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build/bin/octavo")
TRAINER = pathlib.Path(BINARY).with_name("octavo-trainer")
TINY = {
    **{"size": "tiny", "seconds": "1", "tokens": "4", "clips": "2"},
    **{"device": "cpu", "steps": "1", "dtype": "float32"},
}
PARTS = {
    *("features_ms", "encoder_forward_ms", "predictor_forward_ms", "loss_forward_ms", "loss_backward_ms"),
    *("predictor_backward_ms", "encoder_backward_ms", "optimizer_ms", "rest_ms"),
}

pytestmark = pytest.mark.skipif(not TRAINER.exists(), reason="this build has no octavo-trainer (LibTorch)")


def speech(*flags, **options):
    options = {**TINY, **options}
    return subprocess.run(
        [BINARY, "bench", "speech", *flags, *(f"--{name}={value}" for name, value in options.items())],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def rows_of(**options):
    done = speech("--json", **options)
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert "unknown size" not in done.stderr  # torch prints this if the meter misses an operation
    return json.loads(done.stdout)


def test_rows_of_optimizers_with_and_without_checkpointing():
    found = rows_of(optimizer="adamw,adamw_4bit", checkpointing="off,on")
    rows = {(row["optimizer"], row["checkpointing"]): row for row in found["rows"]}
    assert list(rows) == [
        ("adamw", "off"), ("adamw_4bit", "off"), ("adamw", "on"), ("adamw_4bit", "on")
    ]  # fmt: skip
    parameters = found["parameters"]
    for row in rows.values():
        memory, parts = row["memory"], row["parts"]
        assert set(parts) == PARTS
        assert row["clips"] == 2
        assert row["clips_per_second"] == pytest.approx(2e3 / row["step_ms"])
        assert row["hours"] == pytest.approx(5.2e6 / row["clips_per_second"] / 3600)
        assert sum(parts.values()) == pytest.approx(row["step_ms"])
        assert all(parts[part] > 0 for part in PARTS - {"rest_ms"}), parts
        assert memory["weights"] >= 4 * parameters  # and buffers
        assert memory["gradients"] == 4 * parameters
        assert memory["master"] == 0
        assert memory["loss"] > 0
        static = memory["weights"] + memory["states"]
        assert memory["peak"] > static + max(memory["activations"] + memory["loss"], memory["gradients"])
        assert 0 < row["loss"] < 1000
        assert row["skipped_steps"] == 0
    for checkpointing in ("off", "on"):
        full, small = rows["adamw", checkpointing], rows["adamw_4bit", checkpointing]
        assert full["memory"]["states"] >= 8 * parameters
        assert small["memory"]["states"] < 2 * parameters
        saved = full["memory"]["states"] - small["memory"]["states"]
        assert full["memory"]["peak"] - small["memory"]["peak"] == pytest.approx(saved, rel=0.05)
        assert full["loss"] != small["loss"]  # the optimizers made different steps
    off, on = rows["adamw", "off"], rows["adamw", "on"]
    assert on["memory"]["activations"] < off["memory"]["activations"] / 2
    assert on["memory"]["peak"] < off["memory"]["peak"]
    assert on["loss"] == pytest.approx(off["loss"], rel=1e-5)  # the same steps


def test_states_in_host_memory_give_the_same_loss():
    plain = rows_of()["rows"][0]
    assert plain["memory"]["host"] == 0
    for offload in ("host", "stream"):
        done = speech("--json", "--offload-gradients", offload=offload)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        row = found["rows"][0]
        assert (found["offload"], found["offload_gradients"]) == (offload, True)
        assert row["loss"] == plain["loss"]
        assert row["memory"]["states"] + row["memory"]["host"] > plain["memory"]["states"]
        assert row["memory"]["states"] < plain["memory"]["states"]
        assert row["memory"]["gradients"] < plain["memory"]["gradients"]
    table = speech(offload="stream").stdout
    assert "offload stream" in table
    assert " host" in table
    assert "training.offload: got disk" in speech(offload="disk").stderr


def test_micro_batches_add_up():
    one, found = rows_of()["rows"][0], rows_of(accumulation="3")
    three = found["rows"][0]
    assert found["accumulation"] == 3
    assert three["clips_per_second"] == pytest.approx(3 * 2e3 / three["step_ms"])
    assert three["loss"] == pytest.approx(one["loss"], rel=1e-4)  # every micro-batch has the same clips
    assert sum(three["parts"].values()) == pytest.approx(three["step_ms"])
    # Later micro-batches start with the fp32 gradients of the earlier ones; activations equal those of the
    # first.
    assert three["memory"]["activations"] == one["memory"]["activations"]
    assert three["memory"]["peak"] - one["memory"]["peak"] > 0.5 * one["memory"]["gradients"]
    assert "3 micro-batches a step" in speech(accumulation="3").stdout


def test_sums_of_bf16_gradients_are_counted():
    one, two = (rows_of(dtype="bfloat16", accumulation=each)["rows"][0]["memory"] for each in ("1", "2"))
    ratio = two["gradients"] / one["gradients"]
    assert 2.9 < ratio < 3  # bf16 gradients and an fp32 sum, except for the few fp32 parameters
    assert two["peak"] - one["peak"] > one["gradients"]


def test_heads_sizes_and_numbers_of_clips():
    found = rows_of(head="ctc", clips="1,3", tokens="2", **{"total-clips": "1000"})
    assert [row["clips"] for row in found["rows"]] == [1, 3]
    one, three = (row["memory"]["activations"] for row in found["rows"])
    assert one < three < 4 * one
    assert found["rows"][0]["hours"] < 1
    assert found["head"] == "ctc"
    tdt, rnnt = rows_of(), rows_of(head="rnnt")
    assert tdt["parameters"] - rnnt["parameters"] == 5 * 65  # five durations


def test_tables():
    done = speech()
    assert done.returncode == 0, done.stderr
    for part in ("speech model tiny (tdt, ", "clips of 1 s with 4 tokens", "hours for 5.20M", "activations"):
        assert part in done.stdout
    for part in ("milliseconds of a step", "encoder backward", "loss forward", "rest", "adamw_8bit"):
        assert part in done.stdout


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("size", "huge", ["--size", "'huge'", "v2, v3, tiny", "layers/width"]),
        ("size", "2/100", ["'2/100'", "multiple of 8"]),
        ("optimizer", "adamw_3bit", ["optimizer", "adamw_3bit"]),
        ("checkpointing", "maybe", ["--checkpointing", "maybe"]),
        ("clips", "0", ["--clips", "0"]),
        ("accumulation", "0", ["--accumulation", "0"]),
        ("device", "cuda:99", ["cuda"]),
    ],
)
def test_wrong_usage(option, value, words):
    done = speech(**{option: value})
    assert done.returncode in (1, 2), done.stdout
    assert done.stderr.startswith("octavo: "), done.stderr
    for word in words:
        assert word in done.stderr


def test_products_in_fp8(monkeypatch):
    refused = speech(fp8="delayed")
    assert refused.returncode != 0
    assert "training.fp8: [fp8] device: got cpu" in refused.stderr
    monkeypatch.setenv("OCTAVO_FP8_REFERENCE", "1")
    (row,) = rows_of(fp8="delayed")["rows"]
    (plain,) = rows_of()["rows"]
    assert "fp8" not in plain
    assert row["loss"] != plain["loss"]
    assert row["fp8"]["codes"] > 0
    assert "FP8 matmuls (delayed, measure)" in speech(fp8="delayed").stdout
