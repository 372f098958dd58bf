"""Closures, hooks, copies and names: what torch.optim.Optimizer gives every optimizer."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from models import (
    all_params,
    frozen,
    gradients,
    make_params,
    pickled,
    same_params,
    same_state,
    saved_whole,
    set_grads,
    train,
)
from octavo import optim
from torch import nn
from torch.nn import Parameter
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

ALGORITHMS: list[tuple[str, dict[str, Any]]] = [
    ("adamw", {}),
    ("adam", {"amsgrad": True, "weight_decay": 0.1}),
    ("sgd", {"momentum": 0.9, "dampening": 0.2}),
]
each_algorithm = pytest.mark.parametrize(
    ("algorithm", "options"), ALGORITHMS, ids=[name for name, _ in ALGORITHMS]
)


# --- Closures, hooks ------------------------------------------------------------------------------


def test_closure(device: str) -> None:
    """Called once, with gradients on, its loss returned; the step uses the gradients that it left."""
    params, plain = make_params([(30, 4)], device), make_params([(30, 4)], device)
    optimizer, other = optim.AdamW(params, lr=0.1), optim.AdamW(plain, lr=0.1)
    calls = []

    def closure() -> torch.Tensor:
        assert torch.is_grad_enabled()
        optimizer.zero_grad()
        loss = params[0].square().sum()
        loss.backward()
        calls.append(loss.detach().clone())
        return loss

    for count in range(4):
        with torch.no_grad() if count % 2 else torch.enable_grad():
            loss = optimizer.step(closure)
        assert len(calls) == count + 1
        assert torch.equal(loss.detach(), calls[-1])
        other.zero_grad()
        plain[0].square().sum().backward()
        other.step()
    assert same_params(params, plain)


def test_step_hooks(device: str) -> None:
    params = make_params([(6,)], device)
    optimizer = optim.AdamW(params)
    seen: list[str] = []

    def halve(which: Any, args: Any, kwargs: Any) -> None:
        assert which is optimizer
        seen.append("before")
        params[0].grad.mul_(0.5)

    handles = [
        optimizer.register_step_pre_hook(halve),
        optimizer.register_step_post_hook(lambda *_: seen.append("after")),
        register_optimizer_step_pre_hook(lambda *_: seen.append("global before")),
        register_optimizer_step_post_hook(lambda *_: seen.append("global after")),
    ]
    try:
        (steps,) = gradients(params, 1)
        train(optimizer, params, [steps])
    finally:
        for handle in handles:
            handle.remove()
    assert seen == ["global before", "before", "after", "global after"]
    plain = make_params([(6,)], device)
    train(optim.AdamW(plain), plain, [[steps[0] * 0.5]])
    assert same_params(params, plain)
    train(optimizer, params, [steps])
    assert len(seen) == 4


def test_state_dict_hooks(device: str) -> None:
    params = make_params(device=device)
    optimizer = optim.AdamW8bit(params)
    train(optimizer, params, gradients(params, 2))
    seen: list[Any] = []
    optimizer.register_state_dict_pre_hook(lambda which: seen.append(("pre", which)))

    def tag(which: Any, saved: dict[str, Any]) -> dict[str, Any]:
        seen.append(("post", {i: sorted(entry) for i, entry in saved["state"].items()}))
        return {**saved, "tag": 7}

    optimizer.register_state_dict_post_hook(tag)
    saved = optimizer.state_dict()
    assert seen[0] == ("pre", optimizer)
    # A hook sees what the caller gets.
    assert seen[1] == ("post", {i: sorted(entry) for i, entry in saved["state"].items()})
    assert saved["tag"] == 7

    other = optim.AdamW8bit(make_params(device=device))
    other.register_load_state_dict_pre_hook(lambda which, given: seen.append(given["tag"]))
    other.register_load_state_dict_post_hook(lambda which: seen.append(len(which.state)))
    other.load_state_dict(saved)
    assert seen[2:] == [7, 4]
    other.register_load_state_dict_pre_hook(lambda which, given: {**given, "state": {}})
    other.load_state_dict(saved)
    assert len(other.state) == 0  # what a hook returns is what is loaded


def test_a_post_hook_may_rename_entries(device: str) -> None:
    """What a hook makes of the state dict is what is returned: nothing is done to it afterwards."""
    params = [Parameter(torch.randn(64, 8, 3, 3).to(memory_format=torch.channels_last).to(device))]
    optimizer = optim.AdamW8bit([("conv", params[0])])
    train(optimizer, params, gradients(params, 1))
    plain = frozen(optimizer.state_dict()["state"][0])

    def by_name(which: Any, saved: dict[str, Any]) -> dict[str, Any]:
        names = [name for group in saved["param_groups"] for name in group["param_names"]]
        return {**saved, "state": {names[i]: entry for i, entry in saved["state"].items()}}

    optimizer.register_state_dict_post_hook(by_name)
    assert frozen(optimizer.state_dict()["state"]["conv"]) == plain


# --- Copies, names --------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["fp32", "bf16", "8bit", "4bit-rank1", "fp8-e5m2"])
@pytest.mark.parametrize("how", [copy.deepcopy, pickled, saved_whole], ids=["deepcopy", "pickle", "save"])
def test_a_copy_goes_on_to_the_same_bits(how: Any, state: str, device: str) -> None:
    if how is pickled and state.startswith("fp8"):
        pytest.skip("torch's float8 tensors cannot be pickled but with torch.save")
    params = make_params(device=device, dtype=torch.bfloat16)
    optimizer = optim.AdamW(
        params, lr=1e-2, state=state, block_size=64, master=24, amsgrad=True, clip_grad_norm=1.0, seed=5
    )
    steps = gradients(params, 8)
    train(optimizer, params, steps[:3])
    train(optimizer, params, [[None, *steps[3][1:]]])  # counts differ
    twin = how(optimizer)
    copies = all_params(twin)
    assert not any(a is b for a, b in zip(params, copies, strict=True))
    train(optimizer, params, steps[4:])
    train(twin, copies, steps[4:])
    assert same_params(params, copies)
    assert same_state(optimizer, twin)
    assert frozen(twin.param_groups[0]["betas"]) == [0.9, 0.999]


def test_a_model_and_its_optimizer_copied_together(device: str) -> None:
    """The copied optimizer steps the copied model, not the first one."""
    model = nn.Linear(64, 70).to(device)
    optimizer = optim.AdamW8bit(model.parameters())
    train(optimizer, list(model.parameters()), gradients(list(model.parameters()), 2))
    twin, theirs = copy.deepcopy((model, optimizer))
    before = [p.detach().clone() for p in model.parameters()]
    train(theirs, list(twin.parameters()), gradients(before, 1))
    assert same_params(list(model.parameters()), before)
    train(optimizer, list(model.parameters()), gradients(before, 1))
    assert same_params(list(model.parameters()), list(twin.parameters()))


def test_named_parameters_and_foreign_keys(device: str) -> None:
    model = nn.Linear(7, 3).to(device)
    groups = [{"params": list(model.named_parameters()), "fused": None, "foreach": False, "owner": "titan"}]
    optimizer = optim.AdamW(groups, lr=0.5)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    assert optimizer.param_groups[0]["owner"] == "titan"
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    set_grads(list(model.parameters()), [torch.ones(3, 7), torch.ones(3)])
    optimizer.step()
    saved = optimizer.state_dict()
    other = optim.AdamW(copy.deepcopy(model).named_parameters())
    other.load_state_dict(saved)
    (group,) = other.param_groups
    assert (group["initial_lr"], group["lr"], group["owner"]) == (0.5, 0.25, "titan")
    assert group["param_names"] == ["weight", "bias"]
    assert scheduler.get_last_lr() == [0.25]
    assert {"fused", "foreach"} <= saved["param_groups"][0].keys()


def test_repr(device: str) -> None:
    text = repr(optim.AdamW4bit(make_params(device=device), lr=0.25))
    assert text.startswith("AdamW4bit (")
    assert "lr: 0.25" in text
    assert "state: 4bit" in text


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad(to_none: bool, device: str) -> None:
    params = make_params(device=device)
    optimizer = optim.AdamW(params)
    train(optimizer, params, gradients(params, 1))
    optimizer.zero_grad(set_to_none=to_none)
    assert all(p.grad is None if to_none else not bool(p.grad.any()) for p in params)
    before = [p.detach().clone() for p in params]
    optimizer.step()
    assert same_params(params, before) is to_none  # zero gradients are a step, none are not
