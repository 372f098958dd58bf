"""Under Accelerate, on the CPU: prepare, accumulation, skipped steps, save_state and load_state."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clients
import pytest
import torch
from models import STATES, gradients, make_params, same_state, snapshot, train
from octavo import optim
from octavo.integrations import swap_optimizer

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
from accelerate.optimizer import AcceleratedOptimizer  # noqa: E402
from accelerate.state import AcceleratorState, GradientState  # noqa: E402

RATE, CLIP = 5e-3, 0.5
STEPS = 4  # of an epoch: 64 sequences, batches of 8, two batches a step


@pytest.fixture(autouse=True)
def fresh_accelerate() -> Iterator[None]:
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def cosine(optimizer: torch.optim.Optimizer, epochs: int = 1) -> Any:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS * epochs)


class Run:
    """A loop as Accelerate's documentation writes it, of any number of epochs."""

    def __init__(self, cls: Any, dtype: torch.dtype = torch.float32, **options: Any) -> None:
        self.accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        self.optimizer = cls(
            clients.decay_groups(model := clients.NextToken().to(dtype), 0.1), lr=RATE, **options
        )
        self.steps = clients.record(self.optimizer, model)
        schedule = cosine(self.optimizer, epochs=2)
        self.model, self.prepared, self.loader, self.schedule = self.accelerator.prepare(
            model, self.optimizer, clients.batches(), schedule
        )
        self.losses: list[float] = []

    def epoch(self) -> None:
        for batch in self.loader:
            with self.accelerator.accumulate(self.model):
                loss = self.model(batch["input_ids"])
                self.losses.append(loss.item())
                self.accelerator.backward(loss)
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), CLIP)
                self.prepared.step()
                self.schedule.step()
                self.prepared.zero_grad()


CASES: dict[str, Any] = {
    "8bit": {"cls": optim.AdamW8bit},
    "4bit, bf16 weights": {"cls": optim.AdamW4bit, "dtype": torch.bfloat16, "master": 24},
}


@pytest.mark.parametrize("case", CASES)
def test_training_equals_the_optimizer_by_hand(case: str) -> None:
    run = Run(**CASES[case])
    run.epoch()
    run.epoch()
    assert run.losses[-1] < run.losses[0] - 0.5, run.losses
    slack = 2.0**-7 if "bf16" in case else 1e-5  # each clipped element is rounded to its dtype
    norms = [clients.norm(grads) for grads in run.steps]
    assert CLIP * (1 - slack) <= max(norms) <= CLIP * (1 + slack)
    options = dict(CASES[case])
    by_hand = clients.NextToken().to(options.pop("dtype", torch.float32))
    optimizer = options.pop("cls")(clients.decay_groups(by_hand, 0.1), lr=RATE, **options)
    rates = clients.scheduled_rates(functools.partial(cosine, epochs=2), RATE, 2 * STEPS)
    clients.replay(optimizer, by_hand, run.steps, rates)
    assert clients.same_models(run.model, by_hand)
    assert same_state(run.optimizer, optimizer)


@pytest.mark.parametrize("case", CASES)
def test_loaded_training_has_the_bits_of_an_uninterrupted_one(case: str, tmp_path: Path) -> None:
    whole = Run(**CASES[case])
    whole.epoch()
    whole.accelerator.save_state(str(tmp_path))
    whole.epoch()
    saved = torch.load(tmp_path / "optimizer.bin", weights_only=True)
    assert {entry["exp_avg"].dtype for entry in saved["state"].values()} == {torch.uint8, torch.float32}

    loaded = Run(**CASES[case])
    loaded.accelerator.load_state(str(tmp_path))
    loaded.epoch()
    assert len(loaded.steps) == STEPS
    assert clients.same_models(whole.model, loaded.model)
    assert same_state(whole.optimizer, loaded.optimizer)


@pytest.mark.parametrize("master", ["native", "stochastic", 24, 32])
@pytest.mark.parametrize("state", STATES)
def test_prepare_changes_no_byte_of_an_optimizer_that_has_stepped(state: str, master: Any) -> None:
    params = make_params(dtype=torch.bfloat16)
    optimizer = optim.AdamW(params, state=state, master=master, amsgrad=True)
    train(optimizer, params, gradients(params, 3))
    before = snapshot(optimizer)
    prepared = accelerate.Accelerator(cpu=True).prepare(optimizer)
    assert prepared.optimizer is optimizer
    assert snapshot(optimizer) == before


@pytest.mark.parametrize("fused", [False, True])
def test_skipped_steps(fused: bool) -> None:
    """The wrapper with a scaler, as prepare makes it for fp16 on a GPU."""
    accelerate.Accelerator(cpu=True)
    params = make_params()
    optimizer = optim.AdamW8bit(params, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    wrapped = AcceleratedOptimizer(optimizer, scaler=scaler)
    finite = [8.0 * grad for grad in gradients(params, 1)[0]]
    scaler.scale(torch.zeros(()))  # makes the scale
    for spoilt in (False, True, False):
        before = snapshot(optimizer)
        for param, grad in zip(params, finite, strict=True):
            param.grad = grad.clone()
        if spoilt:
            params[0].grad[0, 0] = float("inf")  # type: ignore[index]
        wrapped.step()
        assert (snapshot(optimizer) == before) == spoilt
        # docs/guides/trainers.md: an optimizer that skips inside the step does not tell the host.
        assert wrapped.step_was_skipped == (spoilt and not fused)
    assert {int(optimizer.state[p]["step"]) for p in params} == {2}


def test_parameters_replaced_after_the_optimizer_was_made() -> None:
    accelerate.Accelerator(cpu=True)
    old, expected = make_params(), make_params()
    wrapped = AcceleratedOptimizer(optim.AdamW8bit(old))
    fresh = [torch.nn.Parameter(p.detach().clone()) for p in old]
    wrapped._switch_parameters(dict(zip(old, fresh, strict=True)))
    unchanged = snapshot(optim.AdamW8bit(old))["params"]
    steps = gradients(fresh, 3)
    train(wrapped.optimizer, fresh, steps)
    train(optim.AdamW8bit(expected), expected, steps)
    assert all(torch.equal(a, b) for a, b in zip(fresh, expected, strict=True))
    assert snapshot(optim.AdamW8bit(old))["params"] == unchanged


def test_gradient_release_with_accumulation_is_an_error() -> None:
    run = Run(optim.AdamW8bit, gradient_release=True)
    with pytest.raises(RuntimeError, match=r"complete a second time .*gradient_accumulation_steps=1"):
        run.epoch()


def test_a_wrapped_optimizer_is_not_swapped() -> None:
    prepared = accelerate.Accelerator(cpu=True).prepare(torch.optim.AdamW(make_params()))
    with pytest.raises(TypeError, match=r"AcceleratedOptimizer wraps another optimizer.*before prepare"):
        swap_optimizer(prepared, optim.AdamW8bit)


def test_the_guides_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = functools.partialmethod(accelerate.Accelerator.__init__, cpu=True)
    monkeypatch.setattr(accelerate.Accelerator, "__init__", on_cpu)
    names = {"model": clients.NextToken(), "loader": clients.batches(), "output_dir": str(tmp_path)}
    scope = clients.run_guide("trainers.md", 6, names)
    assert type(scope["optimizer"].optimizer) is optim.AdamW8bit
    assert {int(entry["step"]) for entry in scope["optimizer"].state.values()} == {STEPS}
    assert scope["schedule"].get_last_lr() == [0.0]
    assert (tmp_path / "optimizer.bin").exists()
