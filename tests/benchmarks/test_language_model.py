"""Tests language_model.py: its words, and the complete script with a tiny model."""

from __future__ import annotations

import importlib
import json
import pathlib
import sys

import pytest
import torch

TINY = [
    *("--device", "cpu", "--vocabulary", "400", "--width", "32", "--layers", "1"),
    *("--batch", "2", "--length", "8"),
]


def test_words_are_drawn_by_zipf_and_follow_one_another() -> None:
    make_words = importlib.import_module("language_model").make_words
    words = make_words(1000, 50, 8, 20, seed=3)
    assert words.shape == (50, 8, 21)
    assert torch.equal(words, make_words(1000, 50, 8, 20, seed=3))
    counts = words.flatten().bincount(minlength=1000).sort(descending=True).values
    assert counts[0] > 300  # of 8,400; 1,122 of Zipf's law, before words determine one another
    assert counts[500] <= 4
    assert 100 < (counts == 0).sum() < 700  # words that do not occur
    pairs = words.flatten(0, 1).unfold(1, 2, 1).reshape(-1, 2)
    frequent = words.flatten().bincount().argmax()
    after = pairs[pairs[:, 0] == frequent, 1].bincount()
    assert after.max() > 0.4 * after.sum()


def test_the_script_trains_every_side(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    script, file = importlib.import_module("language_model"), tmp_path / "found.json"
    counts = ["--steps", "120", "--from-step", "90", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["language_model.py", *TINY, *counts])
    assert script.main() == 0
    printed, found = capsys.readouterr().out, json.loads(file.read_text())
    assert found["params"] == 2 * 400 * 32 + 6 * 32 * 32 + 6 * 32
    assert 0 < found["rows_in_batch"] < found["rows_ever"] < found["rows"] == 400
    sides = {each["side"]: each for each in found["sides"]}
    assert list(sides) == ["torch fused", *(f"octavo {s}" for s in ("fp32", "bf16", "8bit", "4bit", "fp8"))]
    for side in sides.values():
        assert len(side["times_ms"]) == 30
        assert 0 < side["ms_min"] <= side["ms_median"]
        assert side["last_loss"] < side["first_loss"] - 0.1  # it trains
    assert sides["octavo fp32"]["last_loss"] == pytest.approx(sides["torch fused"]["last_loss"], abs=1e-4)
    assert sides["octavo 8bit"]["last_loss"] != sides["octavo fp32"]["last_loss"]
    assert "| torch fused | " in printed
    assert "| 1.00 |" in printed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--steps", "10", "--from-step", "10"], "--from-step: got 10, expected 0 to 9"),
        (["--batch", "0"], "--batch: got 0, expected at least 1"),
        (["--side", "7bit"], "--side: got '7bit', expected a part of one of torch fused, octavo fp32"),
    ],
)
def test_wrong_options_are_named(
    options: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["language_model.py", *TINY, *options])
    with pytest.raises(SystemExit):
        importlib.import_module("language_model").main()
    assert words in capsys.readouterr().err
