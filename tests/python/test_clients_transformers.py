"""In transformers' Trainer: a small random Llama, trained, saved and resumed on the CPU."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import clients
import pytest
import torch
from models import same_state
from octavo import optim

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
from accelerate.state import AcceleratorState, GradientState  # noqa: E402 the Trainer needs accelerate

STEPS, RATE, DECAY, CLIP = 8, 5e-3, 0.1, 0.5


@pytest.fixture(autouse=True)
def fresh_accelerate() -> Iterator[None]:
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def llama(dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    sizes = {"vocab_size": clients.VOCABULARY, "hidden_size": 64, "intermediate_size": 96}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads)).to(dtype)


def arguments(folder: Path, **changes: Any) -> Any:
    options: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": STEPS,
        "learning_rate": RATE,
        "weight_decay": DECAY,
        "max_grad_norm": CLIP,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 2,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        **changes,
    }
    return transformers.TrainingArguments(str(folder), **options)


def expected_rates() -> list[float]:
    make = functools.partial(
        transformers.get_cosine_schedule_with_warmup, num_warmup_steps=2, num_training_steps=STEPS
    )
    return clients.scheduled_rates(make, RATE, STEPS)


class Watch(transformers.TrainerCallback):
    """Notes the gradients of every step."""

    def on_train_begin(self, *_: Any, model: Any = None, optimizer: Any = None, **__: Any) -> None:
        self.optimizer = getattr(optimizer, "optimizer", optimizer)
        self.steps = clients.record(self.optimizer, model)


def trainer_of(model: Any, args: Any, cls: Any, options: dict[str, Any]) -> Any:
    return transformers.Trainer(
        model,
        args,
        train_dataset=clients.Counting(),
        optimizer_cls_and_kwargs=(cls, options),
        callbacks=[Watch()],
    )


def watch_of(trainer: Any) -> Watch:
    return next(c for c in trainer.callback_handler.callbacks if isinstance(c, Watch))


CASES: dict[str, Any] = {
    "8bit": (optim.AdamW8bit, {}, torch.float32),
    "4bit, bf16 weights": (optim.AdamW4bit, {"master": 24, "amsgrad": True}, torch.bfloat16),
    "fp8": (optim.AdamW, {"state": "fp8", "betas": (0.8, 0.95), "eps": 1e-6}, torch.float32),
}


@pytest.mark.parametrize("case", CASES)
def test_training_equals_the_optimizer_by_hand(case: str, tmp_path: Path) -> None:
    cls, options, dtype = CASES[case]
    model, forwards = llama(dtype), []
    model.register_forward_hook(lambda *_: forwards.append(1))
    trainer = trainer_of(model, arguments(tmp_path), cls, {"lr": RATE, **options})
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    losses, norms = [e["loss"] for e in log], [e["grad_norm"] for e in log]
    assert losses[-1] < losses[0] - 0.5, losses
    assert len(forwards) == 2 * STEPS  # accumulated
    watch = watch_of(trainer)
    slack = 2.0**-7 if dtype == torch.bfloat16 else 1e-5  # each clipped element is rounded to its dtype
    assert max(norms) > 2 * CLIP
    assert max(map(clients.norm, watch.steps)) <= CLIP * (1 + slack)
    assert [entry["learning_rate"] for entry in log] == expected_rates()

    by_hand = llama(dtype)
    optimizer = cls(clients.decay_groups(by_hand, DECAY), lr=RATE, **options)
    clients.replay(optimizer, by_hand, watch.steps, expected_rates())
    assert clients.same_models(model, by_hand)
    assert same_state(watch.optimizer, optimizer)


@pytest.mark.parametrize("case", CASES)
def test_resumed_training_has_the_bits_of_an_uninterrupted_one(case: str, tmp_path: Path) -> None:
    cls, options, dtype = CASES[case]
    args = arguments(tmp_path, save_strategy="steps", save_steps=3)
    whole = trainer_of(llama(dtype), args, cls, {"lr": RATE, **options})
    whole.train()
    checkpoint = tmp_path / "checkpoint-3"
    saved = torch.load(checkpoint / "optimizer.pt", weights_only=True)
    codes = {entry["exp_avg"].dtype for entry in saved["state"].values()}
    assert codes == {torch.float32, torch.float8_e4m3fn if case == "fp8" else torch.uint8}

    resumed = trainer_of(llama(dtype), args, cls, {"lr": RATE, **options})
    resumed.train(resume_from_checkpoint=str(checkpoint))
    assert len(watch_of(resumed).steps) == STEPS - 3
    assert clients.same_models(whole.model, resumed.model)
    assert same_state(watch_of(whole).optimizer, watch_of(resumed).optimizer)


def test_options_may_be_text(tmp_path: Path) -> None:
    from transformers.trainer_optimizer import _parse_optim_args

    text = (
        "lr=5e-3, block_size=64, min_quantized_size=3000, eps=1e-6, amsgrad=True, seed=3, clip_grad_norm=0.1"
    )
    typed = {
        "lr": 5e-3,
        "block_size": 64,
        "min_quantized_size": 3000,
        "eps": 1e-6,
        "amsgrad": True,
        "seed": 3,
        "clip_grad_norm": 0.1,
    }
    runs = []
    for options in (_parse_optim_args(text), typed):
        trainer = trainer_of(llama(), arguments(tmp_path, max_steps=3), optim.AdamW8bit, dict(options))
        trainer.train()
        runs.append(trainer)
    groups = [watch_of(trainer).optimizer.param_groups for trainer in runs]
    for as_text, as_typed in zip(*groups, strict=True):
        for key in (*typed, "state"):
            assert as_text.get(key) == as_typed.get(key), key
            assert type(as_text.get(key)) is type(as_typed.get(key)), key
    assert clients.same_models(runs[0].model, runs[1].model)
    assert same_state(*(watch_of(trainer).optimizer for trainer in runs))


def test_gradient_release_inside_the_trainer(tmp_path: Path) -> None:
    """One batch a step; the Trainer finds no gradients to clip, and the bits are those of whole steps."""
    models = []
    for release, clip in ((True, CLIP), (False, 0.0)):
        args = arguments(tmp_path, gradient_accumulation_steps=1, max_grad_norm=clip)
        options = {"lr": RATE, "gradient_release": release}
        trainer = trainer_of(llama(), args, optim.AdamW8bit, options)
        trainer.train()
        models.append(trainer.model)
        assert [bool(grads) for grads in watch_of(trainer).steps] == [not release] * STEPS
    assert clients.same_models(*models)


def test_the_trainer_cannot_clip_gradients_in_host_memory(tmp_path: Path) -> None:
    """max_grad_norm is 1 by default."""
    models = []
    for away in ({"offload": "host", "offload_gradients": True}, {}):
        options = {"lr": RATE, "clip_grad_norm": CLIP, **away}
        trainer = trainer_of(llama(), arguments(tmp_path, max_grad_norm=0.0), optim.AdamW8bit, options)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*reached only the gradients on the device")  # the logged norm
            trainer.train()
        models.append(trainer.model)
    assert clients.same_models(*models)
    options = {"lr": RATE, "offload": "stream", "offload_gradients": True}
    trainer = trainer_of(llama(), arguments(tmp_path, max_grad_norm=1e-3), optim.AdamW8bit, options)
    with pytest.raises(RuntimeError, match="its gradient was changed in place since the backward pass"):
        trainer.train()


@pytest.fixture
def guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a block of the guide on the small model, for a few steps."""
    few = {"max_steps": 4, "use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    init = transformers.TrainingArguments.__init__
    short = functools.partialmethod(init, **few)
    monkeypatch.setattr(transformers.TrainingArguments, "__init__", short)

    def run(number: int) -> Any:
        names = {"output_dir": str(tmp_path), "model": llama(), "dataset": clients.Counting()}
        trainer = clients.run_guide("trainers.md", number, names)["trainer"]
        assert trainer.state.global_step == 4
        return trainer, trainer.optimizer.optimizer

    return run


def test_the_guides_first_lines(guide: Any) -> None:
    _, optimizer = guide(0)
    assert type(optimizer) is optim.AdamW8bit
    assert [group["initial_lr"] for group in optimizer.param_groups] == [3e-3, 3e-3]
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


def test_the_guides_swap_takes_everything_from_the_arguments(guide: Any) -> None:
    _, optimizer = guide(1)
    assert type(optimizer) is optim.AdamW8bit
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.0]  # the end of the schedule
    for group, decay in zip(optimizer.param_groups, (0.1, 0.0), strict=True):
        assert (group["initial_lr"], group["betas"], group["weight_decay"]) == (3e-3, (0.9, 0.95), decay)


def test_the_guides_embeddings_in_fp32(guide: Any) -> None:
    trainer, optimizer = guide(2)
    embedding = trainer.model.get_input_embeddings().weight
    assert clients.state_dtypes(optimizer, [embedding]) == {torch.float32}
    others = [p for p in trainer.model.parameters() if p is not embedding and p.numel() >= 4096]
    assert clients.state_dtypes(optimizer, others) == {torch.uint8}
    decays = {p: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    names = dict(trainer.model.named_parameters())
    spared = {n: "norm" in n or "embed" in n for n in names}
    assert {n: decays[p] for n, p in names.items()} == {n: 0.0 if spared[n] else 0.1 for n in names}


def test_a_marked_embedding_keeps_fp32_in_the_trainers_groups(tmp_path: Path) -> None:
    model = llama()
    embedding = model.get_input_embeddings().weight
    optim.set_state(embedding, state="fp32")
    trainer = trainer_of(model, arguments(tmp_path, max_steps=2), optim.AdamW8bit, {"lr": RATE})
    trainer.train()
    optimizer = watch_of(trainer).optimizer
    assert clients.state_dtypes(optimizer, [embedding]) == {torch.float32}
    assert clients.state_dtypes(optimizer, [model.lm_head.weight]) == {torch.uint8}


def test_gradient_release_with_accumulation_is_an_error(tmp_path: Path) -> None:
    options = {"lr": RATE, "gradient_release": True}
    trainer = trainer_of(llama(), arguments(tmp_path, max_steps=2), optim.AdamW8bit, options)
    with pytest.raises(RuntimeError, match=r"complete a second time .*gradient_accumulation_steps=1"):
        trainer.train()
    once = arguments(tmp_path, max_steps=2, gradient_accumulation_steps=1, max_grad_norm=0.0)
    trainer = trainer_of(llama(), once, optim.AdamW8bit, {**options, "clip_grad_norm": CLIP})
    trainer.train()
    assert {int(entry["step"]) for entry in watch_of(trainer).optimizer.state.values()} == {2}
