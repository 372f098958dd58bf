"""What a load does with what means something else here: nothing in silence, and all or nothing."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import peer_dicts as dicts
import pytest
import torch
from models import STATES, clones, frozen, gradients, make_params, refused, same_params, train, trained
from octavo import optim
from torch.nn import Parameter

# --- The optimizer's own tensors ------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_exchanged_entries_of_its_own_state_dict(state: str, device: str) -> None:
    """Its tensors are the ones that the load writes to: each is read before it is written."""
    params = make_params([(64, 70), (64, 70), (64, 70)], device, torch.bfloat16)
    optimizer = optim.AdamW(params, lr=1e-2, state=state, master=32, amsgrad=True)
    train(optimizer, params, gradients(params, 3))
    saved = optimizer.state_dict()
    wanted = copy.deepcopy(saved)
    order = (1, 2, 0)
    for where in (saved, wanted):
        where["state"] = {i: where["state"][order[i]] for i in range(3)}
        moments = where["state"][0]
        moments["exp_avg_sq"], moments["max_exp_avg_sq"] = moments["max_exp_avg_sq"], moments["exp_avg_sq"]
    expected = frozen(wanted["state"])
    optimizer.load_state_dict(saved)
    assert frozen(optimizer.state_dict()["state"]) == expected


def test_its_own_state_dict_is_loaded_in_place(device: str) -> None:
    _, optimizer = trained(device, state="8bit")
    places = [t.data_ptr() for _, entry in optimizer.entries() for t in entry.values() if t.dim()]
    before = frozen(optimizer.state_dict())
    optimizer.load_state_dict(optimizer.state_dict())
    assert frozen(optimizer.state_dict()) == before
    assert [t.data_ptr() for _, entry in optimizer.entries() for t in entry.values() if t.dim()] == places


# --- All or nothing -------------------------------------------------------------------------------


def entries_of_bitsandbytes(shape: tuple[int, ...]) -> dict[str, Any]:
    parts = {**dicts.bitsandbytes_parts(1, shape, 256)[0], **dicts.bitsandbytes_parts(2, shape, 256)[0]}
    return {"step": 4, **parts}


@pytest.mark.parametrize("state", ["8bit", "4bit", "fp8", "bf16"])
def test_a_bad_map_changes_nothing(state: str, device: str) -> None:
    """A second moment that would come out negative is seen before the rate and the first parameter change."""
    shape = (64, 70)
    params = make_params([shape, shape], device)
    optimizer = optim.AdamW(params, lr=1e-2, state=state)
    train(optimizer, params, gradients(params, 2))
    saved = {**optimizer.state_dict(), "state": {i: entries_of_bitsandbytes(shape) for i in range(2)}}
    saved["param_groups"][0]["lr"] = 0.5
    saved["state"][1]["qmap2"] = -saved["state"][1]["qmap2"]
    with refused(optimizer, ValueError, "parameter 1 of group 0: exp_avg_sq has negative entries"):
        optimizer.load_state_dict(saved)
    saved["state"][1]["qmap2"] = -saved["state"][1]["qmap2"]
    optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("state", ["fp8", "fp8-e5m2"])
def test_negative_codes_of_a_second_moment(state: str, device: str) -> None:
    _, optimizer = trained(device, state=state)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][1]["exp_avg_sq"].view(torch.uint8)[5] = 0x85
    with refused(optimizer, ValueError, "parameter 1 of group 0: exp_avg_sq has negative entries"):
        optimizer.load_state_dict(saved)
    saved["state"][1]["exp_avg_sq"].view(torch.uint8)[5] = 0x80  # a zero has no sign to speak of
    optimizer.load_state_dict(saved)


# --- Another algorithm ----------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["fp32", "8bit"])
def test_lion_refuses_adams_states(state: str, device: str) -> None:
    """Lion's only moment has the name of Adam's first, and other betas."""
    params, source = trained(device, state=state)
    for target in (optim.Lion(clones(params), state=state), optim.SGD(clones(params), state=state)):
        for saved in (source.state_dict(), source.portable_state_dict()):
            with refused(target, ValueError, "parameter 0 of group 0: its state has .*another kind"):
                target.load_state_dict(saved)
    theirs = torch.optim.AdamW(clones(params), betas=(0.8, 0.7))
    lion = optim.Lion(clones(params), betas=(0.95, 0.98))
    lion.load_state_dict(theirs.state_dict())  # without states
    assert lion.param_groups[0]["betas"] == (0.95, 0.98)


def test_momentum_of_bitsandbytes(device: str) -> None:
    """Its SGD keeps it in betas[0]."""
    params = make_params([(64, 70)], device)
    optimizer = optim.SGD(params, lr=1e-2, momentum=0.5)
    parts = dicts.bitsandbytes_parts(1, (64, 70), 256)[0]
    group = {"lr": 0.25, "betas": (0.75, 0.0), "eps": 0.0, "weight_decay": 0.0, "params": [0]}
    optimizer.load_state_dict({"state": {0: {"step": 3, **parts}}, "param_groups": [group]})
    found = optimizer.param_groups[0]
    assert (found["momentum"], found["dampening"], found["lr"]) == (0.75, 0.0, 0.25)
    assert "betas" not in found


# --- Weight decay ---------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("library", ["torch", "ours", "portable"])
@pytest.mark.parametrize(("source", "target"), [("Adam", "AdamW"), ("AdamW", "Adam"), ("Adam", "Adam")])
def test_another_kind_of_decay(
    source: str, target: str, library: str, weight_decay: float, device: str
) -> None:
    """Decay that is added to the gradient is not decay that is applied to the weight."""
    params = make_params([(64, 70)], device)
    module = torch.optim if library == "torch" else optim
    old = getattr(module, source)(params, weight_decay=weight_decay)
    train(old, params, gradients(params, 1))
    saved = old.portable_state_dict() if library == "portable" else old.state_dict()
    if library == "torch" and "decoupled_weight_decay" not in saved["param_groups"][0]:
        pytest.skip("torch before 2.7 does not say")
    new = getattr(optim, target)(clones(params))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        new.load_state_dict(saved)
    found = [str(w.message) for w in said if "weight decay" in str(w.message)]
    ways = {"Adam": "is added to the gradient", "AdamW": "is applied to the parameter"}
    changed = source != target and weight_decay != 0
    expected = f"the weight decay 0.1 of the loaded state {ways[source]}, but that of {target} {ways[target]}"
    assert found == ([expected] if changed else [])
    assert new.param_groups[0].get("decoupled_weight_decay") is None
    if source == target:
        train(old, params, gradients(params, 1))
        train(new, again := new.param_groups[0]["params"], gradients(params, 1))
        assert library == "torch" or same_params(params, again)


def test_bitsandbytes_adam_decays_as_adamw(device: str) -> None:
    (param,) = make_params([(64, 70)], device)
    group = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1, "params": [0]}
    saved = {"state": {0: entries_of_bitsandbytes((64, 70))}, "param_groups": [group]}
    with pytest.warns(UserWarning, match="weight decay 0.1 of the loaded state is applied to the parameter"):
        optim.Adam8bit([param]).load_state_dict(saved)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optim.AdamW8bit([Parameter(param.detach().clone())]).load_state_dict(saved)


# --- Memory formats -------------------------------------------------------------------------------


def test_another_memory_format_is_named(device: str) -> None:
    (param,) = make_params([(32, 8, 3, 3)], device)
    optimizer = optim.AdamW8bit([param], min_quantized_size=0)
    train(optimizer, [param], gradients([param], 1))
    param.data = param.data.to(memory_format=torch.channels_last)
    message = r"in memory in the order \(0, 1, 2, 3\), and they now lie in the order \(0, 2, 3, 1\)"
    with pytest.raises(RuntimeError, match=message):
        train(optimizer, [param], gradients([param], 1))
