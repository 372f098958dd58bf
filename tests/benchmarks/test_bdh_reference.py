"""Tests bdh/reference.py with a stand-in for the published model: windows, training, files, errors."""

from __future__ import annotations

import json
import pathlib

import pytest
import reference
import reference_training
import torch
from bdh_settings import Settings
from text_windows import Text

CPU = torch.device("cpu")
# The stand-in has the names and the call of the published model; it predicts a byte from the last one.
MODEL = """
import dataclasses
import torch

@dataclasses.dataclass
class BDHConfig:
    n_layer: int = 6
    n_embd: int = 256
    dropout: float = 0.1
    n_head: int = 4
    mlp_internal_dim_multiplier: int = 128
    vocab_size: int = 256

class BDH(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.inside = torch.nn.Embedding(config.vocab_size, config.n_embd)
        self.outside = torch.nn.Linear(config.n_embd, config.vocab_size)

    def forward(self, idx, targets):
        logits = self.outside(self.inside(idx))
        return logits, torch.nn.functional.cross_entropy(logits.view(-1, 256), targets.view(-1))
"""
TINY = ["--n-embd", "16", "--block-size", "8", "--batch-size", "4", "--device", "cpu"]


@pytest.fixture
def checkout(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "bdh.py").write_text(MODEL)
    return tmp_path


@pytest.fixture
def text(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "text.txt"
    path.write_text("abcdefgh" * 60)
    return path


def test_the_last_tenth_is_held_out_in_adjacent_windows() -> None:
    data = bytes(range(250)) * 4
    text = Text(data, 9, CPU)
    assert text.cut == 900
    starts = text.held_out_starts()
    assert starts.tolist() == list(range(900, 991, 9))
    assert len(starts) == 11  # (100 - 1) / 9: each has one more byte, its last target
    tokens, targets = text.windows(starts)
    assert bytes(tokens[0].tolist()) == data[900:909]
    assert bytes(targets[-1].tolist()) == data[991:1000]


def test_training_windows_stay_before_the_held_out_part_and_follow_the_seed() -> None:
    text = Text(bytes(100), 4, CPU)
    starts = text.training_starts(500, 4, seed=3)
    assert (int(starts.min()), int(starts.max())) == (0, text.cut - 5)  # 2,000 draws of 86
    assert torch.equal(starts, text.training_starts(500, 4, seed=3))
    assert not torch.equal(starts, text.training_starts(500, 4, seed=4))


def test_a_text_too_short_is_an_error() -> None:
    with pytest.raises(ValueError, match="17 bytes, and a block_size of 8 takes 18"):
        Text(bytes(17), 8, CPU)


def test_evaluation_weighs_a_smaller_last_batch_by_its_size(checkout: pathlib.Path) -> None:
    torch.manual_seed(5)
    data = bytes(torch.randint(256, (1000,)).tolist())
    text = Text(data, 9, CPU)
    settings = Settings(n_embd=16)
    made = reference_training.Reference(reference_training.load(checkout), settings, "fp32", CPU)
    assert made.evaluate(text, rows=4) == pytest.approx(made.evaluate(text, rows=64), abs=1e-5)


@pytest.mark.parametrize(("limit", "clipped"), [(1e-3, True), (0.0, False), (1e3, False)])
def test_gradients_are_clipped(checkout: pathlib.Path, limit: float, clipped: bool) -> None:
    settings = Settings(n_embd=16, max_grad_norm=limit)
    made = reference_training.Reference(reference_training.load(checkout), settings, "fp32", CPU)
    norms: list[float] = []

    def look(*_: object) -> None:
        norms.append(
            float(torch.stack([p.grad.norm() for p in made.parameters if p.grad is not None]).norm())
        )

    made.optimizer.register_step_pre_hook(look)
    tokens = torch.arange(8).view(1, 8)
    made.step(tokens, tokens, 1e-3)
    assert norms[0] == pytest.approx(1e-3, rel=1e-3) if clipped else 0.1 < norms[0] < 100


def test_steps_have_their_rate(checkout: pathlib.Path) -> None:
    module = reference_training.load(checkout)
    tokens = torch.arange(8).view(1, 8)
    moved = []
    for rate in (1e-3, 2e-3):
        made = reference_training.Reference(module, Settings(n_embd=16, weight_decay=0), "fp32", CPU)
        before = made.parameters[1].detach().clone()
        made.step(tokens, tokens, rate)
        moved.append(float((made.parameters[1].detach() - before).abs().max()))
    # The first step of Adam moves by the learning rate.
    assert moved == pytest.approx([1e-3, 2e-3], rel=1e-2)


def test_runs_are_appended_once_and_learn(
    checkout: pathlib.Path, text: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    results = tmp_path / "reference.jsonl"
    steps = ["--max-steps", "60", "--warmup-steps", "5", "--eval-steps", "25", "--learning-rate", "0.05"]
    call = ["loss", "--reference", str(checkout), "--text", str(text), "--results", str(results)]
    assert reference.main([*call, *TINY, *steps, "--mode", "fp32", "--seeds", "2"]) == 0
    assert reference.main([*call, *TINY, *steps, "--mode", "fp32", "--seeds", "3"]) == 0
    found = [json.loads(line) for line in results.read_text().splitlines()]
    assert [(r["arm"], r["seed"]) for r in found] == [("reference fp32", seed) for seed in range(3)]
    assert found[0]["steps"] == [25, 50, 60]
    assert found[0]["rates"][-1] == Settings(max_steps=60, warmup_steps=5, learning_rate=0.05).rate(60)
    assert all(r["loss"] == r["validation"][-1] < 0.5 for r in found)  # the text repeats itself
    assert len({r["loss"] for r in found}) == 3
    with pytest.raises(ValueError, match="n_embd=16, and this one has n_embd=32"):
        reference.main([*call, *TINY, *steps, "--n-embd", "32"])


def test_a_wrong_checkout_is_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere/bdh\.py|nowhere is not a file"):
        reference_training.load(tmp_path / "nowhere")
