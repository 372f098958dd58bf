"""State dicts that cannot be used: a ValueError that names the parameter, and nothing changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import STATES, gradients, make_params, refused, train
from models import trained_groups as trained
from octavo import optim

# --- State dicts ----------------------------------------------------------------------------------

Change = Callable[[dict[str, Any]], None]


def change_entry(number: int, **values: Any) -> Change:
    def change(saved: dict[str, Any]) -> None:
        for key, value in values.items():
            entry = saved["state"][number]
            if value is None:
                del entry[key]
            else:
                entry[key] = value(entry[key]) if callable(value) else value  # or a new key

    return change


def nan_count(saved: dict[str, Any]) -> None:
    saved["state"][0]["octavo_step"] = torch.tensor(float("nan"))


DAMAGES: dict[str, tuple[Change, str]] = {
    "no scales": (change_entry(0, exp_avg_scale=None), "parameter 'first': exp_avg_scale is missing"),
    "no scales of v": (change_entry(0, exp_avg_sq_scale=None), "'first': exp_avg_sq_scale is missing"),
    "no v": (
        change_entry(0, exp_avg_sq=None, exp_avg_sq_scale=None),
        "'first': its state has no exp_avg_sq: it comes from another kind of optimizer",
    ),
    "no step": (change_entry(0, octavo_step=None), "parameter 'first': .*step"),
    "step of nan": (nan_count, "'first': step is nan, expected a whole number"),
    "negative step": (change_entry(0, octavo_step=torch.tensor(-1)), "'first': step is -1"),
    "half a step": (change_entry(0, octavo_step=torch.tensor(1.5)), "'first': step is 1.5"),
    "codes cut off": (change_entry(1, exp_avg=lambda t: t[:-1].clone()), "'second': exp_avg has"),
    "codes of another shape": (
        change_entry(0, exp_avg=lambda t: t.transpose(0, 1).contiguous()),
        r"'first': exp_avg has shape \(130, 40\), but the parameter has shape \(40, 130\)",
    ),
    "scales cut off": (
        change_entry(0, exp_avg_scale=lambda t: t[:-1].clone()),
        "'first': exp_avg has .* scales",
    ),
    "scales of half": (
        change_entry(0, exp_avg_scale=lambda t: t.half()),
        "'first': exp_avg_scale is torch.float16, expected torch.float32",
    ),
    "codes of int32": (change_entry(0, exp_avg=lambda t: t.int()), "'first': exp_avg has dtype torch.int32"),
    "codes of floats": (change_entry(0, exp_avg=lambda t: t.float()), "'first': exp_avg"),
    "negative scales": (
        change_entry(0, exp_avg_sq_scale=lambda t: -t),
        "'first': exp_avg_sq_scale has negative entries: the state is corrupt",
    ),
    "a small one of another shape": (
        change_entry(2, exp_avg=lambda t: t[:-1].clone()),
        r"'third': exp_avg has shape \(16,\), but the parameter has shape \(17,\)",
    ),
    "a string": (change_entry(3, exp_avg="lost"), "'fourth': exp_avg is a str, expected a tensor"),
    "another optimizer's": (
        lambda saved: saved["state"].update({0: {"step": 3, "hessian": torch.zeros(40, 130)}}),
        "'first': its state has the keys step, hessian, which no known optimizer writes",
    ),
    "fewer groups": (lambda saved: saved["param_groups"].pop(), "a different number of parameter groups"),
    "fewer parameters": (
        lambda saved: saved["param_groups"][0]["params"].pop(),
        "a parameter group that doesn't match the size of optimizer's group",
    ),
    "a bad rate": (lambda saved: saved["param_groups"][1].update(lr=-1.0), "Invalid learning rate: -1.0"),
    "bad betas": (lambda saved: saved["param_groups"][1].update(betas=(2, 0)), "Invalid beta parameter"),
    "a bad order": (
        change_entry(0, dim_order=(0, 0)),
        r"'first': dim_order is \(0, 0\), expected an order of 2 dimensions",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_state_dicts(name: str, device: str) -> None:
    change, message = DAMAGES[name]
    params, optimizer = trained(device, state="8bit", steps=4)
    saved = copy.deepcopy(optimizer.state_dict())
    train(optimizer, params, gradients(params, 1))
    change(saved)
    with refused(optimizer, ValueError, message):
        optimizer.load_state_dict(saved)
    train(optimizer, params, gradients(params, 1))


@pytest.mark.parametrize("state", ["fp32", "8bit", "4bit"])
@pytest.mark.parametrize("key", ["exp_avg", "exp_avg_sq", "step", "exp_avg_scale"])
def test_a_tensor_without_values(state: str, key: str, device: str) -> None:
    """14 entries and the learning rate had changed before the error, which named no parameter."""
    _, optimizer = trained(device, state=state)
    saved = copy.deepcopy(optimizer.state_dict())
    entry = saved["state"][1]
    key = key if key in entry else "octavo_step" if key == "step" else "exp_avg"
    entry[key] = torch.empty_like(entry[key], device="meta")
    saved["param_groups"][0]["lr"] = 0.125
    with refused(
        optimizer, ValueError, f"parameter 'second': {key} is a tensor on meta, which has no values"
    ):
        optimizer.load_state_dict(saved)


@pytest.mark.parametrize("state", STATES)
def test_a_state_dict_of_another_model(state: str, device: str) -> None:
    _, optimizer = trained(device, state=state)
    other = make_params([(40, 131), (4100,), (17,), (3, 5, 7)], device)
    theirs = optim.AdamW([{"params": other[:2]}, {"params": other[2:]}], state=state)
    train(theirs, other, gradients(other, 1))
    with refused(optimizer, ValueError, "parameter 'first': exp_avg"):
        optimizer.load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("source", ["Lion", "SGD", "RMSprop", "Adadelta"])
def test_a_state_dict_of_another_optimizer(source: str, device: str) -> None:
    """Lion's first moment is no Adam's; the step count is not even looked at."""
    _, optimizer = trained(device)
    params = make_params(device=device)
    module = optim if source == "Lion" else torch.optim
    options = {"momentum": 0.9} if source == "SGD" else {}
    theirs = getattr(module, source)([{"params": params[:2]}, {"params": params[2:]}], lr=1e-3, **options)
    train(theirs, params, gradients(params, 1))
    with refused(optimizer, ValueError, "parameter 'first': its state has"):
        optimizer.load_state_dict(theirs.state_dict())


def test_a_damaged_last_entry_leaves_the_first_ones(device: str) -> None:
    """Everything is read before anything is written: other values, other formats, another lr."""
    _, optimizer = trained(device, state="4bit")
    _, source = trained(device, state="8bit", steps=5)
    saved = copy.deepcopy(source.state_dict())
    saved["param_groups"][0]["lr"] = 0.125
    saved["state"][3]["exp_avg"] = saved["state"][3]["exp_avg"][:1].clone()
    with refused(optimizer, ValueError, "parameter 'fourth'"):
        optimizer.load_state_dict(saved)


@pytest.mark.parametrize("state", STATES)
def test_second_moments_that_cannot_be(state: str, device: str) -> None:
    """A negative second moment: corrupt, in whichever format it would be kept."""
    _, optimizer = trained(device, state=state)
    params = make_params(device=device)
    theirs = torch.optim.AdamW([{"params": params[:2]}, {"params": params[2:]}])
    train(theirs, params, gradients(params, 1))
    theirs.state[params[1]]["exp_avg_sq"][7] = -1.0
    with refused(optimizer, ValueError, "parameter 'second': exp_avg_sq has negative entries"):
        optimizer.load_state_dict(theirs.state_dict())


def test_masters_that_do_not_fit(device: str) -> None:
    params = make_params(device=device, dtype=torch.bfloat16)
    optimizer = optim.AdamW(params, master=32)
    train(optimizer, params, gradients(params, 1))
    for shape, dtype in (((3,), torch.int16), ((40, 130), torch.float32), ((40, 130), torch.int32)):
        saved = copy.deepcopy(optimizer.state_dict())
        saved["state"][0]["master"] = torch.zeros(shape, dtype=dtype)
        with refused(optimizer, ValueError, "parameter 0 of group 0: master is torch"):
            optimizer.load_state_dict(saved)


def test_what_is_no_state_dict(device: str) -> None:
    _, optimizer = trained(device)
    for given in ({}, {"state": {}}, {"param_groups": optimizer.state_dict()["param_groups"]}):
        with refused(optimizer, KeyError, "state|param_groups"):
            optimizer.load_state_dict(given)


def test_live_states_that_do_not_fit(device: str) -> None:
    """The core trusts sizes, so nothing that somebody has put into optimizer.state may reach it unseen."""
    params, optimizer = trained(device, state="8bit")
    good = optimizer.state[params[0]]["exp_avg_scale"]
    optimizer.state[params[0]]["exp_avg_scale"] = good[:-2].clone()
    with refused(optimizer, RuntimeError, "parameter 'first': its state fits no format"):
        optimizer.step()
    optimizer.state[params[0]]["exp_avg_scale"] = good
    optimizer.step()


def test_live_masters_and_scales_that_do_not_fit(device: str) -> None:
    params = make_params([(40, 130)], device, torch.bfloat16)
    optimizer = optim.AdamW8bit(params, master=24)
    train(optimizer, params, gradients(params, 1))
    entry = optimizer.state[params[0]]
    for key, value, message in (
        ("master", entry["master"][:2].clone(), r"master bits have shape \(2, 130\), expected \(40, 130\)"),
        ("exp_avg_scale", entry["exp_avg_scale"].half(), "its state fits no format"),
    ):
        good, entry[key] = entry[key], value
        with refused(optimizer, RuntimeError, message):
            optimizer.step()
        entry[key] = good
    optimizer.step()


def test_expanded_tensors_load(device: str) -> None:
    """One number as many: a file may hold it so, the core reads all of them."""
    params = make_params([(8192,)], device)
    optimizer = optim.AdamW8bit(params)
    train(optimizer, params, gradients(params, 1))
    saved = optimizer.state_dict()
    saved["state"][0]["exp_avg_scale"] = torch.ones(1, dtype=torch.float32).expand(32)
    saved["state"][0]["exp_avg"] = torch.full((1,), 200, dtype=torch.uint8).expand(8192)
    again = make_params([(8192,)], device)
    other = optim.AdamW8bit(again)
    other.load_state_dict(saved)
    assert other.state[again[0]]["exp_avg"].is_contiguous()
    assert other.state[again[0]]["exp_avg"].unique().tolist() == [200]
    train(other, again, gradients(again, 1))
