"""swap_optimizer: the schedule, the options, the moments and the hooks of the old optimizer are kept."""

from __future__ import annotations

import dataclasses
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import Beside, clones, gradients, make_params, same_params, same_state, set_grads, train
from octavo import optim
from octavo.integrations import optimizer_named, swap_optimizer
from rounding import Bound, Hyper
from torch.optim import lr_scheduler as schedulers

SHAPES = ((40, 130), (17,))
STEPS = 12


def adamw(params: Any, **options: Any) -> torch.optim.AdamW:
    """Two groups that differ in everything a group can say."""
    groups = [
        {"params": params[:1], "lr": 1e-2, "weight_decay": 0.1},
        {"params": params[1:], "lr": 3e-3, "betas": (0.8, 0.95), "eps": 1e-6, "note": "kept"},
    ]
    return torch.optim.AdamW(groups, foreach=False, **options)


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "lambda": lambda o: schedulers.LambdaLR(o, [lambda n: 0.9**n, lambda n: 1 / (n + 1)]),
    "step": lambda o: schedulers.StepLR(o, 3, 0.5),
    "cosine": lambda o: schedulers.CosineAnnealingLR(o, STEPS),
    "restarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3),
    "one-cycle": lambda o: schedulers.OneCycleLR(o, [1e-2, 2e-2], total_steps=STEPS + 1),  # betas too
    "cyclic": lambda o: schedulers.CyclicLR(o, 1e-4, 1e-2, step_size_up=4),  # betas too
    "plateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=1),
    "warm-up": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, total_iters=4), schedulers.CosineAnnealingLR(o, 8)], [4]
    ),
    "chained": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o, 0.5, 3), schedulers.ExponentialLR(o, 0.9)], o
    ),
    "swa": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, anneal_epochs=5),
}


def scheduled_run(name: str, swap_at: int | None) -> list[Any]:
    """What every step used: learning rates and betas."""
    params = make_params(SHAPES)
    optimizer: torch.optim.Optimizer = adamw(params)
    scheduler = SCHEDULES[name](optimizer)
    seen = []
    for number, grads in enumerate(gradients(params, STEPS)):
        if number == swap_at:
            optimizer = swap_optimizer(optimizer, optim.AdamW8bit, scheduler=scheduler)
        train(optimizer, params, [grads])
        seen.append([(group["lr"], group["betas"]) for group in optimizer.param_groups])
        scheduler.step(*([1.0] if name == "plateau" else []))
    assert scheduler.get_last_lr() == [group["lr"] for group in optimizer.param_groups]
    return seen


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("swap_at", [0, 1, 5])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_schedule_goes_on(name: str, swap_at: int) -> None:
    expected = scheduled_run(name, None)
    assert len({str(numbers) for numbers in expected}) > 2, "a schedule that schedules nothing"
    assert scheduled_run(name, swap_at) == expected


def test_torch_still_sees_a_scheduler_that_steps_before_its_optimizer() -> None:
    params = make_params(SHAPES)
    optimizer = adamw(params)
    scheduler = SCHEDULES["step"](optimizer)
    new = swap_optimizer(optimizer, optim.AdamW, scheduler=scheduler)
    with pytest.warns(UserWarning, match="before `optimizer.step"):
        scheduler.step()
    assert new.param_groups[0]["lr"] == 1e-2


@pytest.mark.filterwarnings("error")
def test_a_swap_between_the_optimizers_step_and_the_schedulers() -> None:
    params = make_params(SHAPES)
    optimizer = adamw(params)
    scheduler = SCHEDULES["step"](optimizer)
    train(optimizer, params, gradients(params, 1))
    swap_optimizer(optimizer, optim.AdamW8bit, scheduler=scheduler)
    scheduler.step()


@pytest.mark.parametrize("amsgrad", [False, True])
def test_fp32_training_goes_on_as_torchs(amsgrad: bool) -> None:
    params = make_params(SHAPES)
    steps = gradients(params, STEPS)
    beside = Beside("adamw", params, amsgrad=amsgrad)
    beside.theirs = adamw(beside.copies, amsgrad=amsgrad)
    old: torch.optim.Optimizer = adamw(params, amsgrad=amsgrad)
    schedules = [SCHEDULES["warm-up"](old), SCHEDULES["warm-up"](beside.theirs)]
    for number, grads in enumerate(steps):
        if number == 5:
            new = swap_optimizer(old, optim.AdamW, scheduler=schedules[0])
            for param in params:
                for key, value in old.state[param].items():
                    assert torch.equal(new.state[param][key].to(value.dtype), value), key
            beside.bounds = {id(p): Bound(Hyper()) for p in beside.copies}  # equal until here
            beside.ours = new
        elif number < 5:
            beside.ours = old
        beside.step(grads)
        for schedule in schedules:
            schedule.step()
    assert beside.steps_taken() == [(STEPS, STEPS)] * 2


@pytest.mark.parametrize("state", ["fp32", "8bit", "4bit", "fp8"])
def test_a_swap_for_the_same_class_changes_no_bit(state: str) -> None:
    runs = []
    for swap in (False, True):
        params = make_params(SHAPES)
        optimizer = optim.AdamW(params, lr=1e-2, state=state)
        steps = gradients(params, STEPS)
        train(optimizer, params, steps[:5])
        if swap:
            optimizer = swap_optimizer(optimizer, optim.AdamW, state=state)
        train(optimizer, params, steps[5:])
        runs.append((params, optimizer))
    assert same_params(runs[0][0], runs[1][0])
    assert same_state(runs[0][1], runs[1][1])


def test_options_of_groups_and_defaults() -> None:
    old = adamw(make_params(SHAPES), lr=7e-3, maximize=True, fused=True)
    new = swap_optimizer(old, optim.AdamW8bit, eps=1e-5, block_size=64)
    for before, after in zip(old.param_groups, new.param_groups, strict=True):
        assert all(p is q for p, q in zip(before["params"], after["params"], strict=True))
        for key in ("lr", "betas", "weight_decay", "amsgrad", "maximize"):
            assert after[key] == before[key], key
        assert (after["eps"], after["block_size"], after["state"]) == (1e-5, 64, "8bit")
        assert after["fused"] is None
        assert not {"decoupled_weight_decay", "differentiable"} & after.keys()
    assert new.param_groups[1]["note"] == "kept"
    assert (new.defaults["lr"], new.defaults["maximize"], new.defaults["eps"]) == (7e-3, True, 1e-5)


def test_options_given_replace_those_that_come_with_the_states() -> None:
    params = make_params(SHAPES)
    old = adamw(params)
    train(old, params, gradients(params, 2))
    new = swap_optimizer(old, optim.AdamW, weight_decay=0.5, amsgrad=True)
    assert [group["weight_decay"] for group in new.param_groups] == [0.5, 0.5]
    train(new, params, gradients(params, 2, seed=3))  # makes the maximum that was not there
    assert all("max_exp_avg_sq" in new.state[p] for p in params)


def test_a_format_of_one_group_stays_and_the_default_goes() -> None:
    first, second = make_params([(64, 80), (64, 80)])
    old = optim.AdamW([{"params": [first], "state": "bf16"}, {"params": [second]}], state="fp32")
    new = swap_optimizer(old, optim.AdamW8bit)
    assert [group["state"] for group in new.param_groups] == ["bf16", "8bit"]


def test_a_learning_rate_tensor_stays_the_same_tensor() -> None:
    params, rate = make_params(SHAPES), torch.tensor(1e-2)
    old = torch.optim.AdamW(params, lr=rate, foreach=False)
    scheduler = SCHEDULES["step"](old)
    train(old, params, gradients(params, 1))
    new = swap_optimizer(old, optim.AdamW8bit, scheduler=scheduler)
    for grads in gradients(params, 3):
        train(new, params, [grads])
        scheduler.step()
    assert new.param_groups[0]["lr"] is rate
    assert float(rate) == pytest.approx(5e-3, rel=2**-23)


def test_sgd_keeps_its_momentum() -> None:
    params = make_params(SHAPES)
    old = torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True)
    train(old, params, gradients(params, 3))
    new = swap_optimizer(old, optim.SGD)
    assert new.param_groups[0]["momentum"] == 0.9
    assert new.param_groups[0]["nesterov"] is True
    for param in params:
        assert torch.equal(new.state[param]["momentum_buffer"], old.state[param]["momentum_buffer"])


def test_hooks_and_their_handles_move() -> None:
    params, calls = make_params(SHAPES), []
    old = adamw(params)
    handle = old.register_step_post_hook(lambda optimizer, *_: calls.append(optimizer))
    new = swap_optimizer(old, optim.AdamW8bit)
    train(new, params, gradients(params, 1))
    handle.remove()
    train(new, params, gradients(params, 1))
    assert len(calls) == 1
    assert calls[0] is new


@dataclasses.dataclass
class Config:  # as Lightning's LRSchedulerConfig
    scheduler: Any


@pytest.mark.parametrize("wrap", [lambda s: {"scheduler": s, "interval": "step"}, lambda s: [s], Config])
def test_schedulers_in_what_frameworks_put_them(wrap: Callable[[Any], Any]) -> None:
    old = adamw(make_params(SHAPES))
    scheduler = SCHEDULES["warm-up"](old)
    new = swap_optimizer(old, optim.AdamW8bit, scheduler=wrap(scheduler))
    assert all(each.optimizer is new for each in (scheduler, *scheduler._schedulers))


def test_the_old_optimizer_is_freed() -> None:
    params = make_params(SHAPES)
    old = adamw(params)
    scheduler = SCHEDULES["warm-up"](old)
    train(old, params, gradients(params, 1))
    gone = weakref.ref(old)
    new = swap_optimizer(old, optim.AdamW8bit, scheduler=scheduler)
    del old
    assert gone() is None
    train(new, params, gradients(params, 1))


def test_a_scheduler_left_behind_is_a_warning() -> None:
    old = adamw(make_params(SHAPES))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        swap_optimizer(old, optim.AdamW8bit)
    SCHEDULES["step"](old)
    with pytest.warns(UserWarning, match="pass it as scheduler="):
        swap_optimizer(old, optim.AdamW8bit)


@pytest.mark.parametrize(
    ("before", "after", "warned"),
    [
        (torch.optim.Adam, optim.AdamW8bit, True),
        (torch.optim.AdamW, optim.Adam8bit, True),
        (torch.optim.Adam, optim.Adam8bit, False),
        (torch.optim.AdamW, optim.AdamW8bit, False),
    ],
)
def test_another_kind_of_weight_decay_is_a_warning(before: Any, after: Any, warned: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        swap_optimizer(before(make_params(SHAPES), weight_decay=0.1), after)
        swap_optimizer(before(make_params(SHAPES), weight_decay=0.0), after)
    assert ["weight decay" in str(each.message) for each in caught] == [True] * warned


def test_errors_change_nothing() -> None:
    params = make_params(SHAPES)
    old = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    scheduler = SCHEDULES["step"](old)
    train(old, params, gradients(params, 1))
    with pytest.raises(ValueError, match=r"no exp_avg.*another kind of optimizer"):
        swap_optimizer(old, optim.AdamW8bit, scheduler=scheduler)
    with pytest.raises(ValueError, match=r"StepLR.*another optimizer"):
        swap_optimizer(old, optim.SGD, scheduler=SCHEDULES["step"](adamw(make_params(SHAPES))))
    with pytest.raises(TypeError, match="expected a learning rate scheduler, got int"):
        swap_optimizer(old, optim.SGD, scheduler=3)
    with pytest.raises(TypeError, match="got list"):
        swap_optimizer(params, optim.SGD)  # type: ignore[arg-type]
    assert scheduler.optimizer is old
    set_grads(params, gradients(params, 1)[0])
    old.step()
    scheduler.step()
    old.state.clear()  # the way to begin anew
    assert not swap_optimizer(old, optim.AdamW8bit, scheduler=scheduler).state


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("RMSprop", {"momentum": 0.9, "centered": True}),
        ("Adagrad", {"initial_accumulator_value": 0.5, "lr_decay": 0.1}),
    ],
)
def test_options_and_moments_that_few_algorithms_have(name: str, options: dict[str, Any], steps: int) -> None:
    theirs = make_params([(64, 64)])
    old = getattr(torch.optim, name)(theirs, **options)
    train(old, theirs, gradients(theirs, steps))
    ours = clones(theirs)
    copy = getattr(torch.optim, name)(ours, **options)
    copy.load_state_dict(old.state_dict())
    new = swap_optimizer(copy, getattr(optim, name))
    assert all(new.param_groups[0][key] == value for key, value in options.items())
    train(old, theirs, gradients(theirs, 3, seed=4))
    train(new, ours, gradients(theirs, 3, seed=4))
    assert float((ours[0] - theirs[0]).detach().abs().max()) <= 1e-6


# --- Names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("adamw_8bit", "AdamW8bit"),
        ("adamw_bnb_8bit", "AdamW8bit"),
        ("adamw_torch_4bit", "AdamW4bit"),
        ("adamw_torch_fused", "AdamW"),
        ("rmsprop_bnb", "RMSprop"),
        ("rmsprop_bnb_32bit", "RMSprop32bit"),
        ("paged_ademamix_8bit", "PagedAdEMAMix8bit"),
        ("lion_fp8", "LionFp8"),
        ("AdEMAMix8bit", "AdEMAMix8bit"),
    ],
)
def test_names_of_the_trainer(name: str, cls: str) -> None:
    assert optimizer_named(name) is getattr(optim, cls)


def test_every_name_of_the_trainer_that_is_bitsandbytes_or_torchaos() -> None:
    arguments = pytest.importorskip("transformers.training_args")
    marks = ("bnb", "8bit", "32bit", "4bit", "paged")
    names = [n.value for n in arguments.OptimizerNames if any(mark in n.value for mark in marks)]
    names = [name for name in names if not name.startswith("galore")]
    assert len(names) >= 14
    for name in names:
        assert ("paged" in name) == optimizer_named(name).__name__.startswith("Paged")


def test_a_name_that_is_not_here() -> None:
    with pytest.raises(ValueError, match="is called 'adafactor'; expected one of"):
        optimizer_named("adafactor")
