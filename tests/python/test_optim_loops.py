"""Training loops: which parameters have a gradient changes from step to step, parameters are frozen, tied,
added and taken out. fp32 states follow torch.optim through all of it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import (
    Beside,
    all_params,
    count_calls,
    frozen,
    gradients,
    make_params,
    same_params,
    train,
)
from octavo import optim
from octavo.optim import registration
from torch import nn

ALGORITHMS: list[tuple[str, dict[str, Any]]] = [
    ("adamw", {}),
    ("adam", {"amsgrad": True, "weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9, "dampening": 0.2}),
]
each_algorithm = pytest.mark.parametrize(
    ("algorithm", "options"), ALGORITHMS, ids=[name for name, _ in ALGORITHMS]
)


# --- Gradients that come and go -------------------------------------------------------------------


@each_algorithm
def test_frozen_parameters(algorithm: str, options: dict[str, Any], device: str) -> None:
    params = make_params(device=device)
    params[1].requires_grad_(False)
    beside = Beside(algorithm, params, **options)
    beside.copies[1].requires_grad_(False)
    before = params[1].detach().clone()
    for grads in gradients(params, 6):
        grads[1] = None  # type: ignore[call-overload]
        beside.step(grads)
    assert torch.equal(params[1], before)
    assert not beside.ours.state.get(params[1])


@each_algorithm
def test_a_first_gradient_that_comes_late(algorithm: str, options: dict[str, Any], device: str) -> None:
    """Bias correction (and SGD's first momentum) count the parameter's own steps."""
    beside = Beside(algorithm, make_params(device=device), **options)
    for count, grads in enumerate(gradients(beside.params, 12)):
        beside.step([g if count >= 3 * i else None for i, g in enumerate(grads)])
    if algorithm != "sgd":
        assert beside.steps_taken() == [(12, 12), (9, 9), (6, 6), (3, 3)]


@each_algorithm
def test_gradients_that_come_and_go(algorithm: str, options: dict[str, Any], device: str) -> None:
    """Experts of a mixture: at each of 30 steps a random choice of parameters has a gradient."""
    chance = torch.Generator().manual_seed(3)
    groups = [{"params": [0, 2, 4]}, {"params": [1, 3, 5], "lr": 3e-3}]
    params = make_params([(4096,), (16, 9), (33,), (7, 5), (2,), (64, 64)], device)
    beside = Beside(algorithm, params, groups, **options)
    for grads in gradients(params, 30):
        here = torch.rand(6, generator=chance) < torch.tensor([0.2, 0.9, 0.5, 0.4, 0.6, 0.7])
        beside.step([g if bool(h) else None for g, h in zip(grads, here, strict=True)])
    ours = [mine for mine, _ in beside.steps_taken()]
    assert len(set(ours)) > 2
    if algorithm != "sgd":
        assert ours == [theirs for _, theirs in beside.steps_taken()]


def test_gradients_that_come_and_go_in_low_bits(device: str) -> None:
    """Each parameter steps as it would alone: the others' presence changes no bit."""
    shapes = [(64, 64), (40, 130), (4096,)]
    together, alone = make_params(shapes, device), make_params(shapes, device)
    joint = optim.AdamW8bit(together)
    single = [optim.AdamW8bit([p]) for p in alone]
    chance = torch.Generator().manual_seed(4)
    for grads in gradients(together, 12):
        given = [g if bool(torch.rand((), generator=chance) < 0.6) else None for g in grads]
        train(joint, together, [given])
        for optimizer, param, grad in zip(single, alone, given, strict=True):
            train(optimizer, [param], [[grad]])
    assert same_params(together, alone)
    for optimizer, a, b in zip(single, together, alone, strict=True):
        assert frozen(joint.state[a]) == frozen(optimizer.state[b])


def test_equal_counts_step_together(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters whose counts meet again are one native call again."""
    params = make_params([(8,), (9,), (10,)], device)
    optimizer = optim.AdamW(params)
    a, b, c = gradients(params, 1)[0]
    for given in ([a, None, None], [None, b, c], [a, b, c]):
        train(optimizer, params, [given])
    calls = count_calls(monkeypatch)
    train(optimizer, params, [[a, b, c]])
    assert calls == [3]


def test_thousands_of_small_parameters_are_one_call(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LoRA: 3000 tensors."""
    params = make_params([(8, 4)] * 1500 + [(4, 8)] * 1500, device)
    optimizer = optim.AdamW(params, lr=1e-2, state="8bit", min_quantized_size=0)
    calls = count_calls(monkeypatch)
    steps = gradients(params, 2)
    train(optimizer, params, steps)
    assert calls == [3000, 3000]
    some = [0, 1499, 1500, 2999]
    alone = [make_params([(8, 4)] * 1500 + [(4, 8)] * 1500, device)[i] for i in some]
    train(
        optim.AdamW(alone, lr=1e-2, state="8bit", min_quantized_size=0),
        alone,
        [[grads[i] for i in some] for grads in steps],
    )
    assert same_params([params[i] for i in some], alone)


def test_experts_that_take_turns_are_not_examined_again(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which parameters have a gradient changes at every step; each of them is examined once."""
    experts = [make_params([(8, 4), (4,)], device, seed=i) for i in range(6)]
    params = [p for expert in experts for p in expert]
    optimizer = optim.AdamW(params, lr=1e-2)
    examined: list[int] = []
    plain = registration.register_tensors
    monkeypatch.setattr(
        registration,
        "register_tensors",
        lambda own, some, kinds: (examined.append(len(some)), plain(own, some, kinds)),
    )
    for turn, grads in enumerate(gradients(params, 12)):
        train(optimizer, params, [[g if (i // 2 + turn) % 6 < 2 else None for i, g in enumerate(grads)]])
    assert examined == [4, 2, 2, 2, 2]
    assert [int(optimizer.state[p]["step"]) for p in params] == [4] * 12


# --- Groups ---------------------------------------------------------------------------------------


@each_algorithm
def test_a_group_added_in_mid_training(algorithm: str, options: dict[str, Any], device: str) -> None:
    beside = Beside(algorithm, make_params(device=device), **options)
    for grads in gradients(beside.params, 4):
        beside.step(grads)
    beside.add(make_params([(50,), (4, 1030)], device, seed=7), lr=5e-3, weight_decay=0.0)
    for grads in gradients(beside.params, 4, seed=8):
        beside.step(grads)
    assert [len(group["params"]) for group in beside.ours.param_groups] == [4, 2]


def test_options_of_a_group_changed_between_steps(device: str) -> None:
    beside = Beside("adamw", make_params(device=device))
    changes: list[dict[str, Any]] = [
        {"lr": 1e-2},
        {"betas": (0.5, 0.9)},
        {"weight_decay": 0.3},
        {"eps": 1e-3},
        {"maximize": True},
    ]
    for change, grads in zip(changes, gradients(beside.params, 5), strict=True):
        beside.ours.param_groups[0].update(change)
        beside.theirs.param_groups[0].update(change)
        beside.step(grads)


def test_momentum_switched_on_and_off(device: str) -> None:
    """A buffer that is made late starts with the gradient itself, as at a first step."""
    beside = Beside("sgd", make_params(device=device), momentum=0.0)
    for momentum, grads in zip((0.0, 0.0, 0.9, 0.9, 0.0, 0.5), gradients(beside.params, 6), strict=True):
        for optimizer in (beside.ours, beside.theirs):
            optimizer.param_groups[0].update(momentum=momentum, dampening=0.5 if momentum else 0.0)
        beside.step(grads)


def test_a_parameter_taken_out_of_a_group(device: str) -> None:
    """It stays unchanged, and the others are stepped."""
    params = make_params(device=device)
    beside = Beside("adamw", params)
    steps = gradients(params, 6)
    for grads in steps[:3]:
        beside.step(grads)
    beside.ours.param_groups[0]["params"].pop(1)
    beside.theirs.param_groups[0]["params"].pop(1)
    before = params[1].detach().clone()
    for grads in steps[3:]:
        beside.step(grads)
    assert torch.equal(params[1], before)


def test_tied_weights(device: str) -> None:
    """One parameter under two names is stepped once, with the sum of its gradients."""

    def tied() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(11, 16), nn.Linear(16, 11, bias=False))
        model[1].weight = model[0].weight
        return model

    ours, theirs = tied().to(device), tied()
    mine = optim.AdamW(ours.parameters(), lr=1e-2)
    reference = torch.optim.AdamW(theirs.parameters(), lr=1e-2, foreach=False)
    assert len(all_params(mine)) == 1
    for _ in range(3):
        for model, optimizer in ((ours, mine), (theirs, reference)):
            optimizer.zero_grad()
            tokens = torch.arange(11, device=next(model.parameters()).device)
            nn.functional.cross_entropy(model(tokens), tokens.flip(0)).backward()
            optimizer.step()
    # The gradients differ in rounding (another device, other sums), Adam's first steps are about lr each.
    torch.testing.assert_close(ours[0].weight.cpu(), theirs[0].weight, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate parameters")
def test_a_parameter_twice_is_refused(device: str) -> None:
    """torch warns that this will be an error; here one call would write it twice at the same time."""
    (param,) = make_params([(5,)], device)
    with pytest.raises(ValueError, match="parameter 1 of group 0: it is in the group twice"):
        optim.AdamW([param, param])
    with pytest.raises(ValueError, match="some parameters appear in more than one parameter group"):
        optim.AdamW([{"params": [param]}, {"params": [param]}])
