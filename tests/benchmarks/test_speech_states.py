"""Tests how speech_states.py reports finished runs."""

import importlib
import json

import pytest

speech_states = importlib.import_module("speech_states")


@pytest.fixture
def folder(tmp_path):
    for name, ends in {"adamw": (10, 20), "adamw_8bit": (12, 14)}.items():
        for seed, end in enumerate(ends, 1):
            run = tmp_path / f"{name}.{seed}"
            run.mkdir()
            (run / "report.html").write_text("")
            records = [{"kind": "start"}, {"kind": "step", "step": 1}]
            records += [{"kind": "eval", "step": s, "wer": w / 100} for s, w in ((250, 50), (500, end))]
            (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, records)))
    return tmp_path


def test_table_and_curves(folder, capsys):
    speech_states.main(
        ["--speech", "none", "--folder", str(folder), "--optimizers", "adamw,adamw_8bit", "--seeds", "2",
         "--svg", str(folder / "curves.svg")]
    )  # fmt: skip
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "| optimizer | step 250 | step 500 | each seed | mean | deviation |"
    assert rows[2:] == [
        "| adamw | 50.0 | 15.0 | 10.0, 20.0 | 15.0 | 7.1 |",
        "| adamw_8bit | 50.0 | 13.0 | 12.0, 14.0 | 13.0 | 1.4 |",
    ]
    drawn = (folder / "curves.svg").read_text()
    assert drawn.count("<polyline") == 2 + 4
    assert "adamw_8bit" in drawn
