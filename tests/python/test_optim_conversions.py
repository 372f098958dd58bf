"""State dicts in another format or block size, those that torch.optim wrote, and those that it reads."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from models import (
    OURS,
    STATES,
    TORCH,
    Beside,
    clones,
    gradients,
    make_params,
    moments_of,
    through_a_file,
    train,
    trained,
)
from octavo import _codec, optim

ADAM_LIKE = {"adam": {}, "adamw": {}, "sgd": {"momentum": 0.9}, "lion": {}}


# --- Between formats ------------------------------------------------------------------------------

CONVERSIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"state": a}, {"state": b}) for a in STATES for b in STATES if a != b
] + [
    ({"state": "8bit", "block_size": 2048}, {"state": "8bit", "block_size": 256}),
    ({"state": "8bit", "block_size": 64}, {"state": "8bit"}),
    ({"state": "4bit", "block_size": 64}, {"state": "4bit", "block_size": 4096}),
    ({"state": "8bit", "min_quantized_size": 0}, {"state": "8bit"}),
    ({"state": "8bit"}, {"state": "8bit", "min_quantized_size": 0}),
]


def kept_as(options: dict[str, Any], name: str, shape: torch.Size) -> tuple[str, int]:
    """Format and block size of a moment under the options."""
    state = options["state"]
    if state != "bf16" and shape.numel() < options.get("min_quantized_size", 4096):
        state = "fp32"
    if state == "4bit-rank1" and (name == "exp_avg" or len(shape) < 2):
        state = "4bit"
    block = _codec.default_block_size(state)
    return state, block and options.get("block_size", block)


@pytest.mark.parametrize(("before", "after"), CONVERSIONS, ids=str)
def test_conversion(before: dict[str, Any], after: dict[str, Any], device: str) -> None:
    """Bytes that mean the same are taken over; others are the encoding of the decoded values."""
    params, source = trained(device, amsgrad=True, **before)
    again = clones(params)
    other = optim.AdamW(again, amsgrad=True, **after)
    other.load_state_dict(source.state_dict())
    fresh = clones(params)
    shows = optim.AdamW(fresh, amsgrad=True, **after)
    train(shows, fresh, gradients(params, 1))  # shows the layout
    for p, q, f, values in zip(params, again, fresh, moments_of(source), strict=True):
        entry, old = other.state[q], source.state[p]
        assert {k: (v.dtype, v.shape) for k, v in entry.items()} == {
            k: (v.dtype, v.shape) for k, v in shows.state[f].items()
        }
        for name, numbers in values.items():
            state, block = kept_as(after, name, p.shape)
            codes, scales = _codec.encode("second" if "sq" in name else "first", state, numbers, block)
            if kept_as(before, name, p.shape) == (state, block):
                codes, scales = old[name].cpu().view(-1).view(torch.uint8), old.get(name + "_scale")
            assert torch.equal(entry[name].cpu().contiguous().view(-1).view(torch.uint8), codes)
            if name + "_scale" in entry:
                assert torch.equal(entry[name + "_scale"].cpu(), scales.cpu())
    assert [int(e["step"]) for e in other.state.values()] == [3] * 4


@pytest.mark.parametrize(("before", "after"), itertools.permutations(["native", "stochastic", 24, 32], 2))
def test_masters_of_another_width(before: Any, after: Any, device: str) -> None:
    """The wider master of a narrower one is its value; the other way it is rounded; none is the weight."""
    params, source = trained(device, dtype=torch.bfloat16, master=before)
    again = clones(params)
    other = optim.AdamW(again, master=after)
    other.load_state_dict(source.state_dict())
    had, has = source.master_parameters(), other.master_parameters()
    assert bool(has) == (after in (24, 32))
    for p, q in zip(params, again, strict=True):
        if q not in has:
            continue
        wanted = had.get(p, p.detach().float().cpu())
        if (before, after) == (32, 24):
            # Half of its last bit; a whole one where the rounded master belongs to the next bf16 weight.
            apart = (has[q] - wanted).abs() / wanted.abs()
            assert float(apart.max()) <= 2.0**-15
            assert float((apart <= 2.0**-16).float().mean()) > 0.98
        else:
            assert torch.equal(has[q], wanted)


# --- torch's own ----------------------------------------------------------------------------------


def twins(algorithm: str, device: str, **options: Any) -> tuple[Any, Any]:
    """A trained optimizer of ours and a new one of torch's over copies of the parameters (on the device)."""
    params = make_params(device=device)
    ours = OURS[algorithm](params, lr=1e-2, **options)
    train(ours, params, gradients(params, 3))
    torchs = {k: v for k, v in options.items() if k != "state"}
    return ours, TORCH[algorithm](clones(params), lr=0.5, **torchs)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("amsgrad", [False, True])
def test_portable_loads_in_torch(state: str, amsgrad: bool, device: str, tmp_path: Any) -> None:
    for algorithm in ("adam", "adamw"):
        ours, theirs = twins(algorithm, device, state=state, amsgrad=amsgrad)
        portable = through_a_file(ours.portable_state_dict(), tmp_path / "portable.pt")
        assert set(portable["param_groups"][0]) <= set(theirs.param_groups[0])
        theirs.load_state_dict(portable)
        assert theirs.param_groups[0]["lr"] == 1e-2
        params = theirs.param_groups[0]["params"]
        for p, q, values in zip(ours.param_groups[0]["params"], params, moments_of(ours), strict=True):
            entry = theirs.state[q]
            assert float(entry["step"]) == 3
            names = {"exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if amsgrad else [])}
            assert set(values) == names == set(entry) - {"step"}
            assert all(torch.equal(entry[name].cpu(), values[name]) for name in names)
            assert torch.equal(p, q)
        train(theirs, params, gradients(params, 1))
        assert all(bool(torch.isfinite(p).all()) for p in params)


def test_portable_goes_on_as_here(device: str) -> None:
    """fp32 states: torch continues within the bound of one step after another, in both directions."""
    for algorithm, options in (("adamw", {}), ("sgd", {"momentum": 0.9, "dampening": 0.5}), ("sgd", {})):
        beside = Beside(algorithm, make_params(device=device), lr=1e-2, **options)
        steps = gradients(beside.params, 6)
        for grads in steps[:3]:
            beside.step(grads)
        theirs, ours = beside.theirs.state_dict(), beside.ours.portable_state_dict()
        beside.theirs.load_state_dict(ours)
        beside.ours.load_state_dict(theirs)
        for grads in steps[3:]:
            beside.step(grads)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("algorithm", ["adam", "adamw", "sgd"])
def test_torchs_state_dict_loads_here(algorithm: str, state: str, device: str, tmp_path: Any) -> None:
    options = ADAM_LIKE[algorithm]
    params = make_params(device=device)
    theirs = TORCH[algorithm](params, lr=1e-2, **options)
    train(theirs, params, gradients(params, 3))
    ours = OURS[algorithm](clones(params), lr=0.5, state=state, **options)
    ours.load_state_dict(through_a_file(theirs.state_dict(), tmp_path / "optimizer.pt"))
    assert ours.param_groups[0]["lr"] == 1e-2
    assert ours.param_groups[0]["state"] == state
    for p, values in zip(params, moments_of(ours), strict=True):
        for name, numbers in values.items():
            kind = "second" if name.endswith("sq") else "first"
            kept = "fp32" if p.numel() < 4096 and state != "bf16" else state
            coded = _codec.encode(kind, kept, theirs.state[p][name].cpu(), _codec.default_block_size(kept))
            decoded = _codec.decode(kind, kept, *coded, p.shape, _codec.default_block_size(kept))
            assert torch.equal(numbers, decoded)
    if algorithm != "sgd":
        assert {int(e["step"]) for e in ours.state.values()} == {3}
    train(ours, ours.param_groups[0]["params"], gradients(params, 1))


def test_fused_and_capturable_torch_state_dicts(device: str) -> None:
    """Their steps are float tensors on the device."""
    params = make_params(device=device)
    theirs = torch.optim.AdamW(params, fused=True)
    train(theirs, params, gradients(params, 3))
    for options in ({}, {"fused": True}, {"skip_nonfinite": True}):
        ours = optim.AdamW8bit(clones(params), **options)
        ours.load_state_dict(theirs.state_dict())
        entry = ours.state[ours.param_groups[0]["params"][0]]
        assert (int(entry["step"]), entry["step"].dtype) == (3, torch.int64)
        assert entry["step"].device.type == (device if options else "cpu")
        assert ours.param_groups[0]["fused"] == options.get("fused")
