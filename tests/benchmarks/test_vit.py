"""Tests vit_h.py, vit_digits.py and vit_g.py on the CPU with tiny models: rows, missing and failing peers, a
data set in a folder."""

from __future__ import annotations

import importlib
import json
import pathlib
import struct
import sys
import zlib
from typing import Any

import pytest
import torch

ROOT = pathlib.Path(__file__).resolve().parents[2]
PEERS = {"bitsandbytes": ["8bit"], "torchao": ["8bit", "fp8", "4bit"], "lpmm": ["4bit", "4bit-rank1"]}
LIKE_THEM = ["8bit", "fp8", "4bit", "4bit-rank1"]
TINY = ["--layers", "1", "--width", "32", "--heads", "2", "--image", "28", "--classes", "4", "--batch", "4"]


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


def test_the_complete_vit_h(
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
    counts = [
        "--steps",
        "60",
        "--warm-up",
        "2",
        "--rounds",
        "2",
        "--lr",
        "1e-3",
        "--rows",
        rows,
        "--json",
        str(file),
    ]
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
    assert all(
        len(rounds) == 2 and rounds[0]["loss"] == rounds[1]["loss"] for rounds in found["rounds"].values()
    )
    for row in found["rows"]:
        times = [each["ms"] for each in found["rounds"][row["optimizer"]]]
        spread = f"| {row['ms']:.1f} ({min(times):.1f} to {max(times):.1f}) |"
        assert any(
            line.startswith(f"| {row['optimizer']} |") and spread in line for line in printed.splitlines()
        )
    assert "skipped: torchao 8bit: No module named 'torchao.prototype.low_bit_optim'" in printed
    assert "failed: bitsandbytes 8bit, paged: RuntimeError: no such kernel" in printed


def test_rows_take_turns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = importlib.import_module("vit_h")
    counts = ["--steps", "2", "--warm-up", "1", "--rounds", "2", "--rows", "torch fused,octavo 8bit,lpmm"]
    monkeypatch.setattr(sys, "argv", ["vit_h.py", "--device", "cpu", *TINY, *counts])
    assert script.main() == 0
    printed = capsys.readouterr()
    rows = ["torch fused", "octavo 8bit", "octavo 8bit, gradient release"]
    second = [f"round 2 of 2: {name}" for name in rows]  # the first round did not find lpmm
    missing = ["lpmm 4bit", "lpmm 4bit-rank1"]
    first = [f"round 1 of 2: {name}" for name in [*rows, *missing]]
    assert [line for line in printed.err.splitlines() if line.startswith("round")] == first + second
    for name in missing:
        assert f"skipped: {name}: ModuleNotFoundError: No module named 'lpmm'" in printed.out


def test_the_table_of_the_guide_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    script = importlib.import_module("vit_h")
    monkeypatch.setattr(sys, "argv", ["vit_h.py", "--device", "cpu"])
    names = script.parse_options().names
    assert set(names) <= set(script.ROWS)
    theirs = [f"{peer} {state}" for peer, states in PEERS.items() for state in states]
    assert names == ["torch fused", "torch", *theirs, *(f"octavo {state}" for state in LIKE_THEM)]


@pytest.mark.parametrize("split", [False, True])
def test_vit_h_trains_on_a_folder(
    split: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    script, reader = importlib.import_module("vit_h"), importlib.import_module("image_folder")
    data = tmp_path / "data"
    parts = {"train": range(12), "val": range(12, 16)} if split else {".": range(20)}
    for part, numbers in parts.items():
        for label, name in enumerate(("airport", "beach", "church")):
            (data / part / name).mkdir(parents=True)
            for number in numbers:
                (data / part / name / f"{number:02}.jpg").write_bytes(bytes([label]))

    def decoded(file: pathlib.Path, size: int) -> torch.Tensor:  # replaces Pillow
        image = torch.zeros(3, size, size, dtype=torch.uint8)
        image[file.read_bytes()[0]] = 255
        return image

    monkeypatch.setattr(reader, "_decoded", decoded)
    monkeypatch.setitem(sys.modules, "PIL", Any)
    monkeypatch.setitem(sys.modules, "PIL.Image", Any)
    file = tmp_path / "found.json"
    counts = ["--epochs", "4", "--lr", "3e-3", "--rows", "torch fused,octavo 8bit", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["vit_h.py", "--data", str(data), *TINY, *counts, "--device", "cpu"])
    assert script.main() == 0
    rows = {row["optimizer"]: row for row in json.loads(file.read_text())["rows"]}
    assert rows["octavo 8bit"]["accuracy"] == rows["torch fused"]["accuracy"] == 100
    assert "| optimizer | peak GB | seconds of epoch 4 | accuracy % | loss |" in capsys.readouterr().out


def png(width: int, height: int, pixels: bytes) -> bytes:
    """Returns a PNG file of RGB pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + pixels[y * 3 * width : (y + 1) * 3 * width] for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def test_vit_h_trains_on_image_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("PIL.Image")
    script, reader = importlib.import_module("vit_h"), importlib.import_module("image_folder")
    classes = {"airport": (255, 0, 0), "beach": (0, 255, 0), "church": (0, 0, 255)}
    for name, color in classes.items():
        (tmp_path / name).mkdir()
        for number in range(10):
            # A square of the class's color between two gray strips, which are cropped.
            row = bytes(2 * (90, 90, 90)) + bytes(4 * color) + bytes(2 * (90, 90, 90))
            (tmp_path / name / f"{number}.png").write_bytes(png(8, 4, 4 * row))
    training, held_out, names = reader.load(str(tmp_path), 28)
    assert names == list(classes)
    assert (len(training), len(held_out)) == (24, 6)
    for part in (training, held_out):
        for pixels, label in zip(part.pixels, part.labels.tolist(), strict=True):
            color = torch.tensor(classes[names[label]], dtype=torch.uint8)
            assert torch.equal(pixels, color.view(3, 1, 1).expand(3, 28, 28))

    file = tmp_path / "found.json"
    counts = ["--epochs", "6", "--lr", "3e-3", "--rows", "torch fused,octavo 8bit", "--json", str(file)]
    monkeypatch.setattr(sys, "argv", ["vit_h.py", "--data", str(tmp_path), *TINY, *counts, "--device", "cpu"])
    assert script.main() == 0
    rows = {row["optimizer"]: row for row in json.loads(file.read_text())["rows"]}
    assert rows["octavo 8bit"]["accuracy"] == rows["torch fused"]["accuracy"] == 100
    capsys.readouterr()

    (tmp_path / "beach/3.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    assert script.main() == 1
    assert f"{tmp_path / 'beach/3.png'}: not an image that Pillow reads" in capsys.readouterr().err


def test_a_fifth_is_held_out(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = importlib.import_module("image_folder")
    monkeypatch.setitem(sys.modules, "PIL", Any)
    monkeypatch.setitem(sys.modules, "PIL.Image", Any)

    def decoded(file: pathlib.Path, size: int) -> torch.Tensor:
        return torch.full((3, size, size), int(file.stem), dtype=torch.uint8)

    monkeypatch.setattr(reader, "_decoded", decoded)
    for name, numbers in {"a": range(7), "b": range(7, 10)}.items():
        (tmp_path / name).mkdir()
        for number in numbers:
            (tmp_path / name / f"{number}.png").touch()
    training, held_out, classes = reader.load(str(tmp_path), 4)
    assert classes == ["a", "b"]
    numbers = torch.cat([training.pixels, held_out.pixels])[:, 0, 0, 0].tolist()
    assert sorted(numbers) == list(range(10))
    assert len(held_out) == 2
    assert all(
        (number >= 7) == bool(label)
        for number, label in zip(numbers, torch.cat([training.labels, held_out.labels]).tolist(), strict=True)
    )


def test_missing_data_and_models_are_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = importlib.import_module("vit_h")

    def error_of(*options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["vit_h.py", "--device", "cpu", *TINY, *options])
        assert script.main() == 1
        return capsys.readouterr().err

    assert (
        error_of("--data", str(tmp_path / "none"))
        == f"vit_h.py: --data: {tmp_path / 'none'}: no such folder\n"
    )
    monkeypatch.setitem(sys.modules, "PIL", None)  # cannot be imported
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert "--data needs Pillow" in error_of("--data", str(tmp_path))
    monkeypatch.setitem(sys.modules, "PIL", Any)
    monkeypatch.setitem(sys.modules, "PIL.Image", Any)
    assert f"--data: {tmp_path}: no folder of a class in it" in error_of("--data", str(tmp_path))
    (tmp_path / "airport").mkdir()
    assert f"{tmp_path / 'airport'}: no images" in error_of("--data", str(tmp_path))
    monkeypatch.setitem(sys.modules, "timm", None)
    assert "--timm needs timm" in error_of("--timm", "vit_huge")

    class Timm:
        @staticmethod
        def create_model(name: str, pretrained: bool, num_classes: int) -> Any:
            assert (name, pretrained, num_classes) == ("vit_huge", True, 4)
            raise OSError("no route to the hub")

    monkeypatch.setitem(sys.modules, "timm", Timm)
    assert "--timm vit_huge --pretrained: no route to the hub" in error_of(
        "--timm", "vit_huge", "--pretrained"
    )


class _Digits:
    """Images in scikit-learn's form, of two classes: the second or the seventh row is lit."""

    class Found:
        target = (torch.arange(200) % 2).numpy()
        images = 16 * torch.eye(8)[1 + 5 * (torch.arange(200) % 2)].view(200, 8, 1).expand(-1, -1, 8).numpy()

    @staticmethod
    def load_digits() -> Any:
        return _Digits.Found


def test_digits_in_paired_seeds(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, file = importlib.import_module("vit_digits"), tmp_path / "found.json"
    imported = script.makers.imported
    found_in = {"sklearn.datasets": _Digits}
    monkeypatch.setattr(script.makers, "imported", lambda name: found_in.get(name) or imported(name))
    few = ["--seeds", "2", "--epochs", "2", "--batch", "40"]
    rows = ["--rows", "torch fused,octavo fp32,octavo 4bit-rank1,lpmm"]
    monkeypatch.setattr(sys, "argv", ["vit_digits.py", *few, *rows, "--fp32", "--json", str(file)])
    assert script.main() == 0
    printed, found = capsys.readouterr().out, json.loads(file.read_text())["rows"]
    assert "fp32, 2 seeds, 2 epochs, batch 40, 120 images trained on, 60 tested on" in printed
    assert [run["seed"] for run in found["torch fused"]] == [0, 1]
    assert found["torch fused"][0]["loss"] != found["torch fused"][1]["loss"]
    for theirs, ours in zip(found["torch fused"], found["octavo fp32"], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-2)  # the same weights and batches
    assert all(
        0 <= run[part] <= 100 for runs in found.values() for run in runs for part in ("validation", "test")
    )
    assert "skipped: lpmm 4bit: ModuleNotFoundError" in printed
    monkeypatch.setattr(sys, "argv", ["vit_digits.py", *few, "--choose-lr", "2e-3,1e-6"])
    assert script.main() == 0
    chosen = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert [cells[0] for cells in chosen] == ["| 0.002", "| 1e-06"]
    assert float(chosen[0][3].strip(" |")) < float(chosen[1][3].strip(" |"))  # the training loss


def test_accuracy_and_the_learning_rate() -> None:
    script = importlib.import_module("classification")

    class Brightest(torch.nn.Module):
        def forward(self, pixels: torch.Tensor) -> torch.Tensor:
            return pixels.flatten(1)

    pixels = torch.eye(4)[torch.tensor([0, 1, 2, 3, 3, 3, 3])].view(7, 1, 2, 2)
    images = script.Images(pixels, torch.tensor([0, 1, 2, 3, 0, 0, 3]))
    kept = script.Training(1, 1, torch.device("cpu"), lambda pixels: pixels, False, lambda pixels, _: pixels)
    assert script.accuracy(Brightest(), images, kept) == pytest.approx(100 * 5 / 7)
    factor = script.schedule(100)
    assert [factor(step) for step in (0, 9, 10, 55, 100)] == pytest.approx([0.1, 1, 1, 0.5, 0])
    with pytest.raises(ValueError, match="7 images to train on, fewer than a batch of 8"):
        script.train(Brightest(), None, images, 0, script.Training(1, 8, *list(vars(kept).values())[2:]))


def test_digits_move_by_a_pixel() -> None:
    script = importlib.import_module("vit_digits")
    image = torch.full((1, 3, 8, 8), -1.0)
    image[:, :, 3, 4] = 1
    found = script.shifted(image.expand(200, -1, -1, -1), torch.Generator().manual_seed(0))
    lit = {tuple(each.tolist()) for each in (found[:, 0] == 1).nonzero()[:, 1:]}
    assert lit == {(y, x) for y in (2, 3, 4) for x in (3, 4, 5)}
    assert (found == 1).sum() == 200 * 3


def test_the_difference_of_paired_seeds() -> None:
    script = importlib.import_module("vit_digits")

    def runs(*tests: float) -> list[Any]:
        return [script.Run("", seed, 0, 0, 0, test) for seed, test in enumerate(tests)]

    assert script.difference(runs(91, 93, 95), runs(90, 90, 90)) == "+3.00 ± 1.15"  # 2 / sqrt(3)
    assert script.difference(runs(91, 90), runs(91.5, 90.5)) == "-0.50 ± 0.00"
    assert script.difference(runs(91), runs(90)) == "+1.00"
    assert script.difference(runs(91), []) == "-"


def test_the_documents_repeat_the_commands_of_digits() -> None:
    """The script, its README and docs/benchmarks.md have the same command for the choice of the rate."""
    script = importlib.import_module("vit_digits")
    commands = [line for line in script.__doc__.splitlines() if line.startswith("python ")]
    assert len(commands) == 2
    lines = (ROOT / "benchmarks/README.md").read_text().splitlines()
    assert set(commands) <= {line.split(" #")[0].rstrip() for line in lines}
    chosen = next(command for command in commands if "--choose-lr" in command)
    assert f"run: {chosen}; covers:" in (ROOT / "benchmarks/records/2026-11-18/README.md").read_text()


def test_digits_need_scikit_learn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setattr(sys, "argv", ["vit_digits.py"])
    assert importlib.import_module("vit_digits").main() == 1
    assert capsys.readouterr().err.startswith("vit_digits.py needs scikit-learn (pip install scikit-learn): ")


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
        (["--rounds", "0"], "--rounds: got 0, expected at least 1"),
        (["--pretrained"], "--pretrained needs --timm: only timm's models have weights to download"),
        (["--rows", "sgd"], "--rows: got 'sgd', expected 'all' or a part of one of torch fused"),
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
        *("--layers", "1", "--width", "48", "--heads", "2", "--batch", "1", "--repeat", "1"),
        *("--warm-up", "1"),
    ]
    one = ["--one", "octavo AdamW8bit, gradient release"]
    monkeypatch.setattr(sys, "argv", ["vit_g.py", "--device", "cpu", *small, *one])
    assert importlib.import_module("vit_g").main() == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["optimizer"] == one[1]
    assert found["seconds"] > 0
    assert found["params"] > 48 * 3 * 14 * 14
