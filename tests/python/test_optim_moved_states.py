"""What others do to optimizer.state between two steps: taken away and brought back, cleared, written into.
What a step wrote is what the state dict says.
"""

from __future__ import annotations

import copy
import gc
import weakref
from collections import defaultdict
from typing import Any

import pytest
import torch
from models import (
    Beside,
    frozen,
    gradients,
    make_params,
    moments_of,
    same_params,
    train,
)
from octavo import optim
from torch import Tensor
from torch.nn import Parameter

OTHER = {"cpu": "cuda", "cuda": "cpu"}


# --- States ---------------------------------------------------------------------------------------


def moved(optimizer: torch.optim.Optimizer, move: Any) -> None:
    """As trainers that offload do it: every tensor of the state is replaced."""
    for entry in optimizer.state.values():
        for key, value in entry.items():
            if isinstance(value, Tensor):
                entry[key] = move(value)


@pytest.mark.parametrize(
    "options", [{"state": "8bit"}, {"state": "4bit", "skip_nonfinite": True}, {}], ids=str
)
def test_states_taken_away_and_brought_back(options: dict[str, Any], device: str) -> None:
    params, plain = make_params(device=device), make_params(device=device)
    optimizer, other = optim.AdamW(params, **options), optim.AdamW(plain, **options)
    steps = gradients(params, 6)
    for grads in steps:
        train(optimizer, params, [grads])
        moved(optimizer, lambda value: value.to("cpu", copy=True))
        moved(optimizer, lambda value: value.to(device, copy=True))
    train(other, plain, steps)
    assert same_params(params, plain)
    # What the state dict says is what the steps wrote.
    assert frozen(moments_of(optimizer)) == frozen(moments_of(other))
    assert [int(optimizer.state[p]["step"]) for p in params] == [6] * 4


def test_states_taken_away_are_freed(device: str) -> None:
    """Memory is what they are taken away for: nothing may hold it."""
    params = make_params(device=device)
    optimizer = optim.AdamW8bit(params)
    train(optimizer, params, gradients(params, 2))
    watched = [weakref.ref(v) for v in optimizer.state[params[0]].values() if v.dim()]
    assert len(watched) == 4
    moved(optimizer, lambda value: value.to("cpu", copy=True))
    gc.collect()
    assert [ref() for ref in watched] == [None] * 4


@pytest.mark.parametrize("take", ["clear", "pop", "delete"])
def test_states_cleared_are_freed_at_once(take: str, device: str) -> None:
    """Not at the next step: between the two somebody wants the memory."""
    params = make_params(device=device)
    optimizer = optim.AdamW8bit(params)
    train(optimizer, params, gradients(params, 2))
    watched = [weakref.ref(v) for p in params for v in optimizer.state[p].values() if v.dim()]
    assert len(watched) > len(params)
    if take == "clear":
        optimizer.state.clear()
    for param in list(optimizer.state):
        if take == "pop":
            optimizer.state.pop(param)
        else:
            del optimizer.state[param]
    gc.collect()
    assert [ref() for ref in watched] == [None] * len(watched)
    train(optimizer, params, gradients(params, 1))


@pytest.mark.parametrize("way", ["update", "setdefault", "ior"])
def test_states_put_back_as_plain_dictionaries(way: str, device: str) -> None:
    """In every way that a dictionary has."""
    params, plain = make_params(device=device), make_params(device=device)
    optimizer, other = optim.AdamW8bit(params), optim.AdamW8bit(plain)
    steps = gradients(params, 4)
    train(optimizer, params, steps[:2])
    kept = {param: dict(entry) for param, entry in optimizer.state.items()}
    optimizer.state.clear()
    if way == "update":
        optimizer.state.update(kept)
    elif way == "ior":
        optimizer.state |= kept
    else:
        for param, entry in kept.items():
            found = optimizer.state.setdefault(param, entry)
            assert found is optimizer.state[param]
            assert optimizer.state.setdefault(param, {}) is found
    train(optimizer, params, steps[2:])
    train(other, plain, steps)
    assert same_params(params, plain)
    assert frozen(moments_of(optimizer)) == frozen(moments_of(other))


def test_shallow_copies_of_the_states(device: str) -> None:
    """Plain dictionaries with the same tensors; what is put into one is not put into the optimizer."""
    params = make_params(device=device)
    optimizer = optim.AdamW8bit(params)
    train(optimizer, params, gradients(params, 1))
    extra = {"trainer": {"round": 3}}
    for made in (copy.copy(optimizer.state), optimizer.state.copy(), optimizer.state | extra):
        assert type(made) is defaultdict
        assert made[params[0]]["exp_avg"] is optimizer.state[params[0]]["exp_avg"]
        made[0]["note"] = 1
    assert (extra | optimizer.state).keys() == {"trainer", *params}
    assert optimizer.state.keys() == set(params)


def test_states_cleared(device: str) -> None:
    """A reset of the optimizer: as a new one."""
    params = make_params(device=device)
    optimizer = optim.AdamW8bit(params)
    steps = gradients(params, 4)
    train(optimizer, params, steps[:2])
    optimizer.state.clear()
    plain = [Parameter(p.detach().clone()) for p in params]
    train(optimizer, params, steps[2:])
    train(optim.AdamW8bit(plain), plain, steps[2:])
    assert same_params(params, plain)
    assert int(optimizer.state[params[0]]["step"]) == 2


def test_a_state_written_in_place(device: str) -> None:
    """Resets as ReLoRA's write into the tensors themselves."""
    params = make_params(device=device)
    beside = Beside("adamw", params)
    steps = gradients(params, 4)
    for grads in steps[:2]:
        beside.step(grads)
    for ours, theirs in zip(params, beside.copies, strict=True):
        for name, slot in (("exp_avg", 0), ("exp_avg_sq", 1)):
            beside.ours.state[ours][name].mul_(0.0)
            beside.theirs.state[theirs][name].mul_(0.0)
            beside.bounds[id(theirs)].moments[slot] = 0.0
    for grads in steps[2:]:
        beside.step(grads)


def test_foreign_values_in_a_state(device: str) -> None:
    """Other code keeps its entries there; they stay, and steps continue."""
    params, plain = make_params(device=device), make_params(device=device)
    optimizer = optim.AdamW8bit(params)
    steps = gradients(params, 3)
    train(optimizer, params, steps[:1])
    optimizer.state[params[0]]["note"] = "kept"
    optimizer.state["trainer"] = {"round": 3}
    train(optimizer, params, steps[1:])
    train(optim.AdamW8bit(plain), plain, steps)
    assert same_params(params, plain)
    saved = optimizer.state_dict()["state"]
    assert saved[0]["note"] == "kept"
    assert saved["trainer"] == {"round": 3}
    other = optim.AdamW8bit(plain)
    other.load_state_dict(optimizer.state_dict())
    assert other.state["trainer"] == {"round": 3}


def test_the_format_of_a_group_changed_after_the_first_step(device: str) -> None:
    """States keep the format they were made in, through a checkpoint and in a copy, too."""
    params = make_params([(64, 64)], device)
    optimizer, plain = optim.AdamW8bit(params), make_params([(64, 64)], device)
    steps = gradients(params, 4)
    train(optimizer, params, steps[:1])
    optimizer.param_groups[0].update(state="4bit", block_size=32)
    train(optimizer, params, steps[1:3])
    train(optim.AdamW8bit(plain), plain, steps[:3])
    assert same_params(params, plain)
    assert optimizer.state[params[0]]["exp_avg"].shape == (64, 64)
    again = [Parameter(p.detach().clone()) for p in params]
    other = optim.AdamW8bit(again)
    other.load_state_dict(optimizer.state_dict())
    train(optimizer, params, steps[3:])
    train(other, again, steps[3:])
    assert same_params(params, again)


@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq"])
def test_one_moment_moved_behind_the_optimizer(key: str, device: str) -> None:
    """By .data, which no dictionary sees, and without the other moment: the old memory may be anybody's."""
    params = make_params(device=device)
    beside = Beside("adamw", params)
    steps = gradients(params, 4)
    for grads in steps[:2]:
        beside.step(grads)
    old = [beside.ours.state[p][key].data for p in params]
    kept = [o.clone() for o in old]
    for p in params:
        beside.ours.state[p][key].data = beside.ours.state[p][key].data.clone()
    for grads in steps[2:]:
        beside.step(grads)
    assert same_params(old, kept)


def test_other_states_in_their_place(device: str) -> None:
    """optimizer.state replaced as a whole, by as many changes as the old one had."""
    params, plain = make_params([(64, 64)], device), make_params([(64, 64)], device)
    optimizer, other = optim.AdamW8bit(params), optim.AdamW8bit(plain)
    steps = gradients(params, 4)
    train(optimizer, params, steps[:2])
    train(other, plain, steps[:2])
    taken = {key: v.clone() for key, v in optimizer.state[params[0]].items()}
    before = optimizer.state.changes.count
    optimizer.state = {params[0]: taken}
    optimizer._track_state()
    optimizer.state.changes.count = before
    train(optimizer, params, steps[2:])
    train(other, plain, steps[2:])
    assert same_params(params, plain)
    assert frozen(moments_of(optimizer)) == frozen(moments_of(other))


@pytest.mark.parametrize("count", [2, 2.0, torch.tensor(2.0), torch.tensor([2])], ids=str)
@pytest.mark.parametrize("fused", [False, True])
def test_a_count_that_others_have_written(count: Any, fused: bool, device: str) -> None:
    """torch's counts are floats, and older files have numbers."""
    params, plain = make_params(device=device), make_params(device=device)
    optimizer, other = optim.AdamW(params, fused=fused), optim.AdamW(plain)
    steps = gradients(params, 4)
    train(optimizer, params, steps[:2])
    for p in params:
        optimizer.state[p]["step"] = count
    train(optimizer, params, steps[2:])
    train(other, plain, steps)
    assert same_params(params, plain)
    assert [int(optimizer.state[p]["step"]) for p in params] == [4] * 4


@pytest.mark.parametrize("options", [{"state": "8bit"}, {"state": "4bit", "master": 32}, {}], ids=str)
def test_states_in_another_memory_order(options: dict[str, Any], device: str) -> None:
    """Tensors of the right shape that somebody has copied without their strides, or with gaps."""
    shapes, dtype = [(64, 3, 8, 8)], torch.bfloat16
    params, plain = (make_params(shapes, device, dtype) for _ in range(2))
    for p in (*params, *plain):
        p.data = p.data.to(memory_format=torch.channels_last)
    optimizer, other = optim.AdamW(params, **options), optim.AdamW(plain, **options)
    steps = gradients(params, 4)
    train(optimizer, params, steps[:2])
    moved(optimizer, lambda v: torch.stack([v, v], dim=-1)[..., 0] if v.dim() else v)
    assert not optimizer.state[params[0]]["exp_avg"].is_contiguous()
    train(optimizer, params, steps[2:3])
    moved(optimizer, lambda v: v.contiguous())
    train(optimizer, params, steps[3:])
    train(other, plain, steps)
    assert same_params(params, plain)
    assert frozen(moments_of(optimizer)) == frozen(moments_of(other))


def test_a_state_that_is_no_dictionary(device: str) -> None:
    params = make_params(device=device)
    optimizer = optim.AdamW8bit(params)
    optimizer.state["calls"] = 3
    train(optimizer, params, gradients(params, 2))
    assert optimizer.state_dict()["state"]["calls"] == 3
    assert optimizer.state_bytes() == sum(
        v.numel() * v.element_size() for p in params for k, v in optimizer.state[p].items() if "step" not in k
    )
    assert optimizer.master_parameters() == {}
