"""vit_h.py and vit_g.py on the CPU, with tiny models: whole, with a missing peer and one that fails."""

from __future__ import annotations

import importlib
import json
import pathlib
import sys
from typing import Any

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ["--layers", "1", "--width", "32", "--heads", "2", "--image", "28", "--classes", "4", "--batch", "4"]


@pytest.fixture(autouse=True)
def _the_scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("benchmarks", "tests/python"):
        monkeypatch.syspath_prepend(str(ROOT / folder))


def test_vit_h_has_the_size_of_the_guide() -> None:
    model = importlib.import_module("vit_model")
    with torch.device("meta"):
        made = model.VisionTransformer(model.Config())
    assert sum(param.numel() for param in made.parameters()) == 630_822_445


def test_images_show_their_class() -> None:
    model = importlib.import_module("vit_model")
    config, cpu = model.Config(image=28, classes=3), torch.device("cpu")
    first, second = (model.Images(config, 6, cpu) for _ in range(2))
    images, labels = first.next()
    assert images.shape == (6, 3, 28, 28)
    assert all(torch.equal(a, b) for a, b in zip((images, labels), second.next(), strict=True))
    assert not torch.equal(images, first.next()[0])


def test_vit_h_runs_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    script, file = importlib.import_module("vit_h"), tmp_path / "found.json"
    imported = script.makers.imported

    def without_one(module: str) -> Any:
        if module.startswith("torchao"):
            raise script.makers.PeerMissingError(f"No module named {module!r}")
        return imported(module)

    def broken(*_: Any) -> Any:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(script.makers, "imported", without_one)
    monkeypatch.setitem(script.ROWS, "bitsandbytes 8bit, paged", broken)
    rows = "torch fused,octavo fp32,octavo 8bit,octavo 4bit-rank1,torchao 8bit,bitsandbytes 8bit"
    counts = ["--steps", "60", "--warm-up", "2", "--lr", "1e-3", "--rows", rows, "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["vit_h.py", "--device", "cpu", *TINY, *counts])
    assert script.main() == 0
    printed, found = capsys.readouterr().out, json.loads(file.read_text())
    losses = {row["optimizer"]: row["loss"] for row in found["rows"]}
    ours = ["octavo fp32", "octavo 8bit", "octavo 4bit-rank1", "octavo 8bit, gradient release"]
    assert list(losses) == ["torch fused", *ours, "bitsandbytes 8bit"]
    assert all(loss < 1.0 for loss in losses.values())  # it trains: the logarithm of four classes is 1.39
    assert losses["octavo fp32"] == pytest.approx(losses["torch fused"], abs=1e-2)
    assert losses["octavo 8bit"] == losses["octavo 8bit, gradient release"]
    assert all(row["ms"] > row["optimizer_ms"] > 0 and row["peak_gb"] is None for row in found["rows"])
    assert "skipped: torchao 8bit: No module named 'torchao.prototype.low_bit_optim'" in printed
    assert "failed: bitsandbytes 8bit, paged: RuntimeError: no such kernel" in printed


def test_every_format_has_a_row() -> None:
    script = importlib.import_module("vit_h")
    formats = importlib.import_module("octavo._describe").formats()
    assert set(script.FORMATS) == set(formats)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--steps", "2", "--warm-up", "2"], "--steps: got 2, expected more than --warm-up 2"),
        (["--batch", "0"], "--batch: got 0, expected at least 1"),
        (["--heads", "3"], "--width must be a multiple of --heads"),
        (["--rows", "sgd"], "--rows: got 'sgd', expected a part of one of torch fused"),
    ],
)
def test_wrong_options_are_named(
    options: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["vit_h.py", "--device", "cpu", *TINY, *options])
    with pytest.raises(SystemExit):
        importlib.import_module("vit_h").main()
    assert words in capsys.readouterr().err


def test_vit_g_runs_one_optimizer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = [
        "--layers",
        "1",
        "--width",
        "48",
        "--heads",
        "2",
        "--batch",
        "1",
        "--repeat",
        "1",
        "--warm-up",
        "1",
    ]
    one = ["--one", "octavo AdamW8bit, gradient release"]
    monkeypatch.setattr(sys, "argv", ["vit_g.py", "--device", "cpu", *small, *one])
    assert importlib.import_module("vit_g").main() == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["optimizer"] == one[1]
    assert found["seconds"] > 0
    assert found["params"] > 48 * 3 * 14 * 14
