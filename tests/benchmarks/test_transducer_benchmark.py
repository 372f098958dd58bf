"""Runs transducer.py on a tiny lattice: every installed side has the same loss, and a row."""

from __future__ import annotations

import json

import pytest
import transducer

TINY = ["--device", "cpu", "--dtype", "float32", "--clips", "2", "--frames", "6", "--labels", "3"]
TINY += ["--hidden", "16", "--tokens", "12", "--repeat", "2"]


def test_sides_agree_and_have_rows(capsys: pytest.CaptureFixture[str]) -> None:
    rows = transducer.run([*TINY, "--json"])
    assert [row.side for row in rows][:2] == ["joint", "logits"]
    assert rows[0].loss == pytest.approx(rows[1].loss, rel=1e-5)
    assert all(row.ms > 0 for row in rows)
    printed = json.loads(capsys.readouterr().out)
    assert printed["sizes"]["tokens"] == 12
    assert len(printed["rows"]) == len(rows)


def test_an_unknown_side_is_named() -> None:
    with pytest.raises(SystemExit, match="nemo is not one of joint, logits, transformers"):
        transducer.run([*TINY, "--sides", "nemo"])
