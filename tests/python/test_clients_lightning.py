"""In Lightning's Trainer, on the CPU: closures, clipping, accumulation, a scaler, checkpoints, swaps."""

from __future__ import annotations

import functools
import logging
import warnings
from pathlib import Path
from typing import Any

import clients
import pytest
import torch
from models import same_state
from octavo import optim
from torch import Tensor

lightning = pytest.importorskip("lightning", reason="lightning is not installed")

STEPS, RATE, CLIP = 8, 5e-3, 0.5  # 64 sequences, batches of 8, two batches a step, two epochs
pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers.*")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class NextToken(lightning.LightningModule):
    """The model of clients.py, with an optimizer made by `make`."""

    def __init__(self, make: Any = None, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.model = clients.NextToken().to(dtype)
        self.make = make
        self.losses: list[float] = []
        self.rates: list[float] = []

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        loss = self.model(batch["input_ids"])
        self.losses.append(loss.item())
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])

    def configure_optimizers(self) -> Any:
        self.optimizer = self.make(self.model)
        self.steps = clients.record(self.optimizer, self.model)
        return {
            "optimizer": self.optimizer,
            "lr_scheduler": {"scheduler": one_cycle(self.optimizer), "interval": "step"},
        }


def one_cycle(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS + 1, cycle_momentum=False)


def expected_rates() -> list[float]:
    return clients.scheduled_rates(one_cycle, RATE, STEPS)


def trainer_for(folder: Path, **changes: Any) -> Any:
    options: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": 2,
        "accumulate_grad_batches": 2,
        "gradient_clip_val": CLIP,
        "default_root_dir": folder,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **changes,
    }
    return lightning.Trainer(**options)


CASES: dict[str, Any] = {
    "8bit": (optim.AdamW8bit, {}, torch.float32),
    "4bit, bf16 weights": (optim.AdamW4bit, {"master": 24}, torch.bfloat16),
}


def maker(cls: Any, **options: Any) -> Any:
    return lambda model: cls(clients.decay_groups(model, 0.1), lr=RATE, **options)


@pytest.mark.parametrize("case", CASES)
def test_training_equals_the_optimizer_by_hand(case: str, tmp_path: Path) -> None:
    cls, options, dtype = CASES[case]
    make = maker(cls, **options)
    module = NextToken(make, dtype)
    trainer_for(tmp_path).fit(module, clients.batches())
    assert module.losses[-1] < module.losses[0] - 0.5, module.losses
    assert len(module.losses) == 2 * STEPS
    slack = 2.0**-7 if dtype == torch.bfloat16 else 1e-5  # each clipped element is rounded to its dtype
    norms = [clients.norm(grads) for grads in module.steps]
    assert CLIP * (1 - slack) <= max(norms) <= CLIP * (1 + slack)
    assert module.rates == expected_rates()

    by_hand = clients.NextToken().to(dtype)
    optimizer = make(by_hand)
    clients.replay(optimizer, by_hand, module.steps, expected_rates())
    assert clients.same_models(module.model, by_hand)
    assert same_state(module.optimizer, optimizer)


@pytest.mark.parametrize("case", CASES)
def test_resumed_training_has_the_bits_of_an_uninterrupted_one(case: str, tmp_path: Path) -> None:
    cls, options, dtype = CASES[case]
    make = maker(cls, **options)
    whole = NextToken(make, dtype)
    trainer_for(tmp_path).fit(whole, clients.batches())

    half, path = NextToken(make, dtype), tmp_path / "half.ckpt"
    trainer = trainer_for(tmp_path, max_epochs=1)
    trainer.fit(half, clients.batches())
    trainer.save_checkpoint(path)
    assert torch.load(path, weights_only=True)["optimizer_states"][0]["state"]

    resumed = NextToken(make, dtype)
    trainer_for(tmp_path).fit(resumed, clients.batches(), ckpt_path=path, weights_only=True)
    assert len(resumed.steps) == STEPS // 2
    assert clients.same_models(whole.model, resumed.model)
    assert same_state(whole.optimizer, resumed.optimizer)


def test_a_run_of_torchs_adamw_resumes_with_eight_bits(tmp_path: Path) -> None:
    """As docs/guides/nemo.md says of NeMo, whose models are LightningModules."""
    first, path = NextToken(lambda model: torch.optim.AdamW(model.parameters(), RATE)), tmp_path / "half.ckpt"
    trainer = trainer_for(tmp_path, max_epochs=1)
    trainer.fit(first, clients.batches())
    trainer.save_checkpoint(path)
    saved = torch.load(path, weights_only=True)["optimizer_states"][0]

    resumed = NextToken(lambda model: optim.AdamW8bit(model.parameters(), RATE))
    seen: list[Any] = []

    def look(optimizer: Any) -> None:
        if not seen:
            seen.append(optimizer.portable_state_dict()["state"])

    resumed.on_before_optimizer_step = look  # type: ignore[method-assign]
    trainer_for(tmp_path).fit(resumed, clients.batches(), ckpt_path=path, weights_only=True)
    assert len(resumed.steps) == STEPS // 2
    assert seen[0].keys() == saved["state"].keys()
    for number, entry in saved["state"].items():
        found = seen[0][number]
        assert int(found["step"]) == int(entry["step"]) == STEPS // 2
        largest = float(entry["exp_avg"].abs().max())
        torch.testing.assert_close(found["exp_avg"], entry["exp_avg"], rtol=0, atol=0.01 * largest)


def test_manual_optimization(tmp_path: Path) -> None:
    class Manual(NextToken):
        automatic_optimization = False

        def training_step(self, batch: dict[str, Tensor], index: int) -> None:
            optimizer = self.optimizers()
            optimizer.zero_grad()
            self.manual_backward(self.model(batch["input_ids"]))
            self.clip_gradients(optimizer, gradient_clip_val=CLIP)
            optimizer.step()
            self.lr_schedulers().step()

    make = maker(optim.AdamW8bit)
    module = Manual(make)
    options = {"max_epochs": 1, "gradient_clip_val": None, "accumulate_grad_batches": 1}
    trainer_for(tmp_path, **options).fit(module, clients.batches())
    by_hand = clients.NextToken()
    clients.replay(make(by_hand), by_hand, module.steps, expected_rates())
    assert clients.same_models(module.model, by_hand)


@pytest.mark.parametrize("fused", [False, True])
def test_a_scaler_skips_what_overflowed(fused: bool, tmp_path: Path) -> None:
    """16-mixed on the CPU: an infinite gradient leaves everything; the others are unscaled first."""
    from lightning.pytorch.plugins.precision import MixedPrecision

    class Overflowing(NextToken):
        def on_after_backward(self) -> None:
            if self.trainer.global_step == 2 and not self.spoilt:
                self.model.head.bias.grad[0] = float("inf")
                self.spoilt = True
                self.before = [p.detach().clone() for p in self.model.parameters()]

        def on_train_batch_start(self, *_: Any) -> None:
            if getattr(self, "before", None):
                pairs = zip(self.before, self.model.parameters(), strict=True)
                assert all(torch.equal(before, now) for before, now in pairs)
                self.before = []

        spoilt = False

    make = maker(optim.AdamW8bit, fused=fused)
    module = Overflowing(make)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    precision = MixedPrecision("16-mixed", "cpu", scaler)
    options = {"gradient_clip_val": None, "accumulate_grad_batches": 1, "max_epochs": 1}
    trainer_for(tmp_path, plugins=[precision], **options).fit(module, clients.batches())
    assert module.spoilt
    assert module.before == []
    assert float(scaler.get_scale()) == 512.0
    assert {int(entry["step"]) for entry in module.optimizer.state.values()} == {STEPS - 1}
    assert all(p.isfinite().all() for p in module.model.parameters())


def test_lightning_clips_no_fused_optimizer_but_the_optimizer_does(tmp_path: Path) -> None:
    module = NextToken(maker(optim.AdamW8bit, fused=True))
    with pytest.raises(RuntimeError, match="does not allow for gradient clipping"):
        trainer_for(tmp_path, precision="bf16-mixed").fit(module, clients.batches())

    make = maker(optim.AdamW8bit, fused=True, clip_grad_norm=CLIP)
    module = NextToken(make)
    trainer_for(tmp_path, precision="bf16-mixed", gradient_clip_val=None).fit(module, clients.batches())
    assert max(map(clients.norm, module.steps)) > 1.1 * CLIP
    by_hand = clients.NextToken()
    clients.replay(make(by_hand), by_hand, module.steps, expected_rates())
    assert clients.same_models(module.model, by_hand)


class Configured(NextToken):
    """Comes with torch's AdamW, as other people's modules do."""

    def configure_optimizers(self) -> Any:
        self.make = self.make or maker(torch.optim.AdamW, foreach=False)
        return super().configure_optimizers()


def test_the_guides_first_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = functools.partialmethod(
        lightning.Trainer.__init__,
        accelerator="cpu",
        default_root_dir=tmp_path,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    monkeypatch.setattr(lightning.Trainer, "__init__", short)
    names = {"YourModule": NextToken, "loader": clients.batches()}
    scope = clients.run_guide("trainers.md", 3, names)
    module = scope["trainer"].lightning_module
    (optimizer,) = scope["trainer"].optimizers
    assert module.losses[-1] < module.losses[0] - 0.5
    assert clients.state_dtypes(optimizer, [module.model.embedding.weight]) == {torch.float32}
    assert clients.state_dtypes(optimizer, [module.model.hidden.weight]) == {torch.uint8}
    schedule = functools.partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=5e-3, total_steps=STEPS)
    assert module.rates == clients.scheduled_rates(
        functools.partial(schedule, cycle_momentum=False), 5e-3, STEPS
    )


def test_the_guides_swap_keeps_the_schedule(tmp_path: Path) -> None:
    module = clients.run_guide("trainers.md", 4, {"YourModule": Configured})["Module"]()
    trainer = trainer_for(tmp_path)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*lr_scheduler.*")
        trainer.fit(module, clients.batches())
    assert [type(optimizer) for optimizer in trainer.optimizers] == [optim.AdamW8bit]
    assert module.rates == expected_rates()
    by_hand = clients.NextToken()
    clients.replay(maker(optim.AdamW8bit)(by_hand), by_hand, module.steps, expected_rates())
    assert clients.same_models(module.model, by_hand)


def test_the_guides_swap_during_training(tmp_path: Path) -> None:
    callback = clients.run_guide("trainers.md", 5, {})["Swap"]()
    module = Configured()
    trainer = trainer_for(tmp_path, callbacks=[callback])
    trainer.fit(module, clients.batches())
    (new,) = trainer.optimizers
    assert type(new) is optim.AdamW8bit
    assert module.rates == expected_rates()
    assert len(module.steps) == STEPS  # the hook went over, too
    by_hand = clients.NextToken()
    first = maker(torch.optim.AdamW, foreach=False)(by_hand)
    clients.replay(first, by_hand, module.steps[: STEPS // 2], expected_rates()[: STEPS // 2])
    second = maker(optim.AdamW8bit)(by_hand)
    second.load_state_dict(first.state_dict())
    clients.replay(second, by_hand, module.steps[STEPS // 2 :], expected_rates()[STEPS // 2 :])
    assert clients.same_models(module.model, by_hand)
    assert same_state(new, second)
