"""Tests how ranks.py reads the logs of runs."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

ranks = importlib.import_module("ranks")


def make_run(folder: Path, step_seconds: float, weights: bytes, **traffic: float) -> None:
    (folder / "latest").mkdir(parents=True)
    (folder / "latest" / "model.safetensors").write_bytes(weights)
    records = [{"kind": "start", "state_bytes": 8_000_000}]
    records += [
        {"kind": "train", "step": step, "seconds": step * step_seconds, **traffic}
        for step in range(10, 81, 10)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in records))


def test_a_table_compares_with_the_run_without_a_group(tmp_path: Path) -> None:
    make_run(tmp_path / "alone", 0.1, b"weights")
    make_run(tmp_path / "ddp", 0.102, b"weights", comm_bytes=5e6, comm_seconds=0.004, comm_waited=0.001)
    make_run(tmp_path / "zero2", 0.2, b"others", comm_bytes=5e6, comm_seconds=0.004, comm_waited=0.001)
    runs = {
        name: [ranks.measured(tmp_path / folder)]
        for name, folder in ((ranks.ALONE, "alone"), ("ddp", "ddp"), ("zero2", "zero2"))
    }
    lines = ranks.table(runs).splitlines()
    assert lines[2] == "| no group | 100.00 | +0.0% | 8.0 | 0.0 | 0.00 | 0.00 | same bits |"
    assert lines[3] == "| ddp | 102.00 | +2.0% | 8.0 | 5.0 | 4.00 | 1.00 | same bits |"
    assert lines[4].endswith("| other bits |")
    assert "+100.0%" in lines[4]


def test_one_process_does_the_micro_batches_of_all_ranks(tmp_path: Path) -> None:
    options = ranks.argparse.Namespace(
        accumulation=2, ranks=3, command="octavo", config="run.yaml", settings=["a=1"], steps=20
    )
    alone = ranks.command_of(options, ranks.ALONE, tmp_path)
    ddp = ranks.command_of(options, "ddp", tmp_path)
    assert "gradient_accumulation_steps=6" in alone
    assert "gradient_accumulation_steps=2" in ddp
    assert ddp[-1] == "parallel=ddp"
    assert ddp[ddp.index("--nproc-per-node") + 1] == "3"


def test_clips_of_noise_have_the_requested_length(tmp_path: Path) -> None:
    noise_clips = importlib.import_module("noise_clips")
    noise_clips.main([str(tmp_path / "clips"), "--seconds", "0.5", "--files", "2", "--lines", "3"])
    lines = (tmp_path / "clips/train.jsonl").read_text().splitlines()
    entries = [json.loads(each) for each in lines]
    assert [each["audio_filepath"] for each in entries] == ["0.wav", "1.wav", "0.wav"]
    assert all(len(each["text"].split()) == 40 for each in entries)
    assert (tmp_path / "clips/1.wav").stat().st_size == 44 + 2 * 8000
