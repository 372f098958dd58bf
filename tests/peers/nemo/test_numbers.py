"""What NeMo's models compute, and what `octavo` computes with the archives that NeMo saved: features,
encoder, logits, losses, gradients, BatchNorm's statistics and greedy tokens.

The tolerance of each tensor comes from NeMo's own model in float64. NeMo's results in float32 differ from it
by what rounding does to this tensor in this model, and BatchNorm with a small batch makes that large.
Octavo's result may differ from float64 by four times as much, because its sums are in another order, and by
32 units. A unit is float32's spacing, 2^-23, relative to the tensor's largest number: about 60 matmuls in a
row, whose roundings add up at random, are off by 4 sqrt(60) = 31 units at the most.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nemo_models
import pytest
import tones
import torch

SPACING = 2.0**-23
# The longest clip has a multiple of eight frames, where NeMo's padding makes a frame of the encoder.
SAMPLES = [25600, 20000, 8123]
TEXTS = ["low red blue", "seven", "high peep"]


def octavo_tensors(folder: Path, archive: Path, mode: str, batch: dict[str, torch.Tensor]) -> dict[str, Any]:
    from safetensors.torch import load_file, save_file

    source, target = folder / "batch.safetensors", folder / "ours.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in batch.items()}, str(source))
    tones.run(tones.program("tests/speech_tensors"), archive, mode, source, target)
    return load_file(str(target))


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """In units of float32's spacing at the largest number."""
    assert ours.shape == theirs.shape
    largest = max(theirs.abs().max().item(), 1e-30)
    return (ours.double() - theirs.double()).abs().max().item() / largest / SPACING


def valid(out: dict[str, torch.Tensor], name: str, lengths: str) -> list[torch.Tensor]:
    """The rows of a padded tensor without padding."""
    return [row[:length] for row, length in zip(out[name], out[lengths].tolist(), strict=True)]


def assert_close(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor, name: str) -> None:
    assert distance(ours, exact) <= 4 * distance(theirs, exact) + 32, name


def make(folder: Path, head: str, **options: Any) -> tuple[Any, Path, dict[str, torch.Tensor]]:
    model = nemo_models.make(folder, head, **options)
    archive = nemo_models.save(model, folder / "numbers.nemo")
    return model, archive, nemo_models.batch_of(tones.clips(folder, 3), TEXTS, model, SAMPLES)


@pytest.mark.parametrize(
    ("head", "hybrid"), [("tdt", False), ("rnnt", False), ("ctc", False), ("tdt", True), ("rnnt", True)]
)
def test_evaluation(folder: Path, no_cuda_calls: None, head: str, hybrid: bool) -> None:
    model, archive, batch = make(folder, head, hybrid=hybrid)
    outputs = {
        "theirs": nemo_models.compute(model, batch, training=False),
        "exact": nemo_models.compute(model.double(), batch, training=False),
        "ours": octavo_tensors(folder, archive, "eval", batch),
    }
    outputs["exact"]["features"] = nemo_models.exact_features(model, batch)
    ours, theirs = outputs["ours"], outputs["theirs"]
    for out in outputs.values():
        out["logits"] = log_probabilities(out["logits"], head)
    for name in ("feature_lengths", "frame_lengths", "tokens", "token_frames"):
        assert torch.equal(ours[name], theirs[name]), name
    for name, lengths in (
        ("features", "feature_lengths"),
        ("frames", "frame_lengths"),
        ("logits", "frame_lengths"),
    ):
        rows = (valid({**out, lengths: ours[lengths]}, name, lengths) for out in outputs.values())
        for other, exact, mine in zip(*rows, strict=True):
            assert_close(mine, other, exact, name)
    assert_close(ours["loss"], theirs["loss"], outputs["exact"]["loss"], "loss")
    assert len(ours["tokens"].unique()) > 8, "the models' tokens differ, so that equal ones mean something"


def log_probabilities(logits: torch.Tensor, head: str) -> torch.Tensor:
    parts = [logits[..., : -len(nemo_models.DURATIONS)], logits[..., -len(nemo_models.DURATIONS) :]]
    return torch.cat([p.log_softmax(-1) for p in (parts if head == "tdt" else [logits])], -1)


@pytest.mark.parametrize(("head", "pad_to"), [("tdt", 0), ("rnnt", 0), ("ctc", 0), ("ctc", 16), ("rnnt", 48)])
def test_training(folder: Path, no_cuda_calls: None, head: str, pad_to: int) -> None:
    """Losses are below 1000: NeMo's reference of the TDT loss takes -1000 for the logarithm of 0."""
    model, archive, batch = make(folder, head, varied=False, pad_to=pad_to)
    theirs = nemo_models.compute(model, batch, training=True)
    exact = nemo_models.compute(model.double(), batch, training=True)
    assert theirs["loss"] < 500
    ours = octavo_tensors(folder, archive, "train", batch)
    assert torch.equal(ours["frame_lengths"], theirs["frame_lengths"])
    wanted = {n for n in theirs if n.startswith(("gradient.", "buffer."))}
    assert wanted == {n for n in ours if n.startswith(("gradient.", "buffer."))}
    assert any(n.startswith("buffer.") and n.endswith("running_var") for n in wanted)
    for name in sorted(wanted | {"loss", "frames"}):
        assert_close(ours[name], theirs[name], exact[name], name)
