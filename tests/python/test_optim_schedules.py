"""Learning rates: floats and tensors, and torch's schedulers, which must move our optimizers as torch's own.

The sequence of rates (and of the momenta that some schedulers cycle) is the same in bits, and the parameters
follow torch's within rounding.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import Beside, gradients, make_params, same_params, train
from octavo import _engine, optim
from torch.optim import lr_scheduler as schedulers
from torch.optim.swa_utils import SWALR

STEPS = 14
Make = Callable[[torch.optim.Optimizer], Any]


def _sequential(optimizer: torch.optim.Optimizer) -> Any:
    parts = [schedulers.LinearLR(optimizer, 0.1, total_iters=3), schedulers.ExponentialLR(optimizer, 0.8)]
    return schedulers.SequentialLR(optimizer, parts, milestones=[4])


def _chained(optimizer: torch.optim.Optimizer) -> Any:
    return schedulers.ChainedScheduler(
        [schedulers.ConstantLR(optimizer, 0.5, total_iters=4), schedulers.ExponentialLR(optimizer, 0.9)]
    )


SCHEDULERS: dict[str, Make] = {
    "ChainedScheduler": _chained,
    "ConstantLR": lambda o: schedulers.ConstantLR(o, factor=0.3, total_iters=5),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, T_max=6, eta_min=1e-5),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, T_0=4),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 1e-4, 5e-3, step_size_up=4),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.9),
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda step: 1 / (1 + step)),
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.1, total_iters=6),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [3, 7], 0.5),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda step: 0.95),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 1e-2, total_steps=STEPS + 1),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, total_iters=10, power=2.0),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=1, factor=0.5),
    "SequentialLR": _sequential,
    "StepLR": lambda o: schedulers.StepLR(o, 3, 0.5),
    "SWALR": lambda o: SWALR(o, swa_lr=1e-4, anneal_epochs=5),
}


def advance(scheduler: Any, count: int) -> None:
    if isinstance(scheduler, schedulers.ReduceLROnPlateau):
        scheduler.step([3.0, 2.0, 2.0, 2.0, 2.0, 1.0][count % 6])
    else:
        scheduler.step()


def varied(group: dict[str, Any]) -> list[Any]:
    """What schedulers change."""
    return [float(group["lr"]), group.get("momentum"), [float(b) for b in group.get("betas", ())]]


def test_every_scheduler_of_torch_is_here() -> None:
    kinds = [kind for _, kind in inspect.getmembers(schedulers, inspect.isclass)]
    names = {k.__name__ for k in kinds if issubclass(k, schedulers.LRScheduler)}
    assert names - {"LRScheduler", "_LRScheduler"} <= SCHEDULERS.keys()


@pytest.mark.parametrize("algorithm", ["adamw", "sgd"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_scheduler(name: str, algorithm: str, device: str) -> None:
    momentum: dict[str, Any] = {"momentum": 0.9} if algorithm == "sgd" else {}
    params = make_params([(40, 3), (7,)], device)
    groups = [{"params": [0]}, {"params": [1], "lr": 3e-3}]
    beside = Beside(algorithm, params, groups, lr=1e-3, **momentum)
    ours, theirs = SCHEDULERS[name](beside.ours), SCHEDULERS[name](beside.theirs)
    seen = set()
    for count, grads in enumerate(gradients(params, STEPS)):
        mine = [varied(group) for group in beside.ours.param_groups]
        assert mine == [varied(group) for group in beside.theirs.param_groups]
        seen.add(str(mine))
        beside.step(grads)
        advance(ours, count)
        advance(theirs, count)
    assert len(seen) > 1  # the schedule did something
    assert ours.get_last_lr() == theirs.get_last_lr()


@pytest.mark.parametrize("name", ["LambdaLR", "OneCycleLR", "CyclicLR", "ReduceLROnPlateau", "SequentialLR"])
@pytest.mark.parametrize("where", ["cpu", "device"])
def test_scheduler_with_a_tensor(name: str, where: str, device: str) -> None:
    """Schedulers fill a tensor in place; steps must read it again. As exact as an fp32 rate is."""
    params, plain = make_params([(40, 3)], device), make_params([(40, 3)], device)
    rate = torch.tensor(1e-3, device="cpu" if where == "cpu" else device)
    with_tensor, with_float = optim.AdamW(params, lr=rate), optim.AdamW(plain, lr=1e-3)
    scheduler = SCHEDULERS[name](with_tensor)
    assert with_tensor.param_groups[0]["lr"] is rate
    for count, grads in enumerate(gradients(params, STEPS)):
        with_float.param_groups[0].update(
            lr=float(with_tensor.param_groups[0]["lr"]), betas=with_tensor.param_groups[0]["betas"]
        )
        train(with_tensor, params, [grads])
        train(with_float, plain, [grads])
        assert same_params(params, plain)
        advance(scheduler, count)
    assert with_tensor.param_groups[0]["lr"] is rate
    assert float(rate) != pytest.approx(1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("where", ["cpu", "device"])
def test_tensor_rates(where: str, shape: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    """0.5 is the same in every type, so the bits are those of a float."""
    params, plain = make_params(device=device), make_params(device=device)
    rate = torch.full(shape, 0.5, dtype=dtype, device="cpu" if where == "cpu" else device)
    steps = gradients(params, 3)
    tensor, number = optim.AdamW(params, lr=rate), optim.AdamW(plain, lr=0.5)
    train(tensor, params, steps[:2])
    train(number, plain, steps[:2])
    assert same_params(params, plain)
    rate.fill_(0.25)
    number.param_groups[0]["lr"] = 0.25
    train(tensor, params, steps[2:])
    train(number, plain, steps[2:])
    assert same_params(params, plain)


def test_a_rate_may_change_its_type(device: str) -> None:
    """A scheduler that knows no tensors writes a float where one was; torchao raises there."""
    params, plain = make_params(device=device), make_params(device=device)
    steps = gradients(params, 3)
    ours, number = optim.AdamW8bit(params, lr=torch.tensor(0.5)), optim.AdamW8bit(plain, lr=0.5)
    for rate, grads in zip((torch.tensor(0.5, device=device), 0.25, torch.tensor(0.125)), steps, strict=True):
        ours.param_groups[0]["lr"] = rate
        number.param_groups[0]["lr"] = float(rate)
        train(ours, params, [grads])
        train(number, plain, [grads])
    assert same_params(params, plain)


def test_a_scheduler_sees_the_steps(device: str) -> None:
    """torch warns where a scheduler steps before the optimizer; the wrapper that knows must be kept."""
    params = make_params([(4,)], device)
    optimizer = optim.AdamW(params)
    scheduler = schedulers.StepLR(optimizer, 1)
    train(optimizer, params, gradients(params, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()


def test_scheduler_state_survives_a_checkpoint(device: str) -> None:
    """Both state dicts are restored, in either order, and the run continues with the same bits."""
    params = make_params(device=device)
    steps = gradients(params, 8)
    optimizer = optim.AdamW(params, lr=1e-2)
    scheduler = SCHEDULERS["OneCycleLR"](optimizer)
    for grads in steps[:4]:
        train(optimizer, params, [grads])
        scheduler.step()
    saved = optimizer.state_dict(), scheduler.state_dict(), [p.detach().clone() for p in params]
    saved = torch.utils._pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, saved)
    for grads in steps[4:]:
        train(optimizer, params, [grads])
        scheduler.step()
    again = make_params(device=device)
    for p, old in zip(again, saved[2], strict=True):
        p.data.copy_(old)
    other = optim.AdamW(again, lr=0.5, betas=(0.1, 0.2))
    new = SCHEDULERS["OneCycleLR"](other)
    other.load_state_dict(saved[0])
    new.load_state_dict(saved[1])
    for grads in steps[4:]:
        train(other, again, [grads])
        new.step()
    assert same_params(params, again)
    assert new.get_last_lr() == scheduler.get_last_lr()


def test_a_rate_just_below_zero_is_zero(device: str) -> None:
    """LinearLR to 0 ends at -1e-19 or so: torch steps, and so do we; a checkpoint of it loads."""
    params = make_params([(40, 3)], device)
    beside = Beside("adamw", params)
    both = [schedulers.LinearLR(o, 1 / 3, 0.0, total_iters=7) for o in (beside.ours, beside.theirs)]
    for grads in gradients(params, 9):
        beside.step(grads)
        for scheduler in both:
            scheduler.step()
    assert -1e-17 < beside.ours.param_groups[0]["lr"] < 0  # else this asks nothing
    other = optim.AdamW(make_params([(40, 3)], device))
    other.load_state_dict(beside.ours.state_dict())
    assert other.param_groups[0]["lr"] == beside.ours.param_groups[0]["lr"]
    other.param_groups[0]["lr"] = -0.1  # that is a mistake
    with pytest.raises(ValueError, match=r"Invalid learning rate: -0\.1"):
        train(other, other.param_groups[0]["params"], gradients(params, 1))


def test_a_changed_rate_costs_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step after a scheduler's makes the calls of any other step, and one set_group() for each group.

    Nothing is registered, planned or compiled again.
    """
    calls: list[str] = []

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **options: Any) -> Any:
            calls.append(name)
            return method(self, *args, **options)

        return call

    for name, method in vars(_engine.Engine).items():
        if inspect.isfunction(method) and not name.startswith("_"):
            monkeypatch.setattr(_engine.Engine, name, counted(name, method))
    params = [torch.nn.Parameter(torch.ones(4096)) for _ in range(6)]
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer = optim.AdamW8bit([{"params": params[:4]}, {"params": params[4:]}])
    scheduler = schedulers.CosineAnnealingLR(optimizer, T_max=10)

    def step() -> list[str]:
        calls.clear()
        optimizer.step()
        return sorted(calls)

    step()
    constant = step()
    scheduler.step()
    changed = step()
    assert "step" in constant
    assert "set_group" not in constant
    assert changed == sorted([*constant, "set_group", "set_group"])
    assert step() == constant
