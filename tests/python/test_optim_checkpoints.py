"""State dicts of our own: the same bits through a file, buffers kept in place, and what checkpointing
libraries do.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from models import (
    MOMENTS,
    SHAPES,
    STATES,
    Beside,
    clones,
    frozen,
    gradients,
    make_params,
    same_params,
    same_state,
    through_a_file,
    train,
    trained,
)
from octavo import optim
from torch.nn import Parameter

ADAM_LIKE = {"adam": {}, "adamw": {}, "sgd": {"momentum": 0.9}, "lion": {}}


# --- The same bits --------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("master", "amsgrad"), list(itertools.product(["native", "stochastic", 24, 32], [False, True]))
)
def test_round_trip(state: str, master: Any, amsgrad: bool, device: str, tmp_path: Any) -> None:
    options = {"state": state, "master": master, "amsgrad": amsgrad, "block_size": 64, "seed": 3}
    params, optimizer = trained(device, dtype=torch.bfloat16, **options)
    saved = through_a_file(optimizer.state_dict(), tmp_path / "optimizer.pt")
    again = clones(params)
    other = optim.AdamW(again, **{**options, "seed": 0})
    other.load_state_dict(saved)
    assert frozen(other.state_dict()) == frozen(optimizer.state_dict())
    steps = gradients(params, 2, seed=9)
    train(optimizer, params, steps)
    train(other, again, steps)
    assert same_params(params, again)
    assert same_state(optimizer, other)


@pytest.mark.parametrize("name", ["Adam", "SGD", "Lion"])
@pytest.mark.parametrize("state", ["fp32", "8bit", "4bit", "fp8"])
def test_round_trip_of_the_others(state: str, name: str, device: str, tmp_path: Any) -> None:
    options: dict[str, Any] = {"momentum": 0.9, "dampening": 0.5} if name == "SGD" else {}
    params, optimizer = trained(device, name=name, state=state, **options)
    again = clones(params)
    other = getattr(optim, name)(again, state=state, **options)
    other.load_state_dict(through_a_file(optimizer.state_dict(), tmp_path / "optimizer.pt"))
    steps = gradients(params, 2, seed=9)
    train(optimizer, params, steps)
    train(other, again, steps)
    assert same_params(params, again)
    assert same_state(optimizer, other)


@pytest.mark.parametrize(("before", "after"), [(0.0, 0.0), (0.9, 0.9), (0.0, 0.9), (0.9, 0.0)])
def test_sgd_with_and_without_momentum(before: float, after: float, device: str) -> None:
    """The momentum comes with the checkpoint, and with it what a state has."""
    params, optimizer = trained(device, name="SGD", momentum=before)
    again = clones(params)
    other = optim.SGD(again, momentum=after)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["momentum"] == before
    assert same_state(optimizer, other)
    steps = gradients(params, 2, seed=9)
    train(optimizer, params, steps)
    train(other, again, steps)
    assert same_params(params, again)


@pytest.mark.parametrize("state", STATES)
def test_from_one_device_to_another(state: str, device: str, tmp_path: Any) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    target = "cuda" if device == "cpu" else "cpu"
    options: dict[str, Any] = {"state": state, "master": 24}
    params, optimizer = trained(device, dtype=torch.bfloat16, **options)
    for where in (None, "cpu"):
        saved = through_a_file(optimizer.state_dict(), tmp_path / "optimizer.pt", where)
        again = [Parameter(p.detach().to(target)) for p in params]
        other = optim.AdamW(again, **options)
        other.load_state_dict(saved)
        assert all(e["exp_avg"].device.type == target for e in other.state.values())
        here = copy.deepcopy(optimizer)
        steps = gradients(params, 2, seed=9)
        train(here, here.param_groups[0]["params"], steps)
        train(other, again, steps)
        assert same_params(here.param_groups[0]["params"], again)


def test_a_state_dict_is_of_now(device: str) -> None:
    """Its step counts do not change with the optimizer's, nor with each other."""
    params, optimizer = trained(device, state="8bit")
    saved = optimizer.state_dict()
    train(optimizer, params, gradients(params, 1))
    counts = [entry["octavo_step" if i < 2 else "step"] for i, entry in saved["state"].items()]
    assert list(map(int, counts)) == [3] * 4
    counts[0].add_(10)
    assert list(map(int, counts)) == [13, 3, 3, 3]
    assert int(optimizer.state[params[0]]["step"]) == 4


def test_a_loaded_state_dict_stays_as_it_is(device: str) -> None:
    params, optimizer = trained(device, state="8bit")
    saved = copy.deepcopy(optimizer.state_dict())
    before = frozen(saved)
    again = clones(params)
    other = optim.AdamW8bit(again)
    other.load_state_dict(saved)
    train(other, again, gradients(again, 2))
    assert frozen(saved) == before


def test_late_parameters_keep_their_counts(device: str, tmp_path: Any) -> None:
    beside = Beside("adamw", make_params(device=device))
    steps = gradients(beside.params, 8)
    for count, grads in enumerate(steps[:5]):
        beside.step([g if count >= i else None for i, g in enumerate(grads)])
    saved = through_a_file(beside.ours.state_dict(), tmp_path / "optimizer.pt")
    assert [int(saved["state"][i]["step"]) for i in range(4)] == [5, 4, 3, 2]
    other = optim.AdamW(beside.params)
    other.load_state_dict(saved)
    beside.ours = other
    for grads in steps[5:]:
        beside.step(grads)
    assert beside.steps_taken() == [(8, 8), (7, 7), (6, 6), (5, 5)]


def test_parameters_without_a_state(device: str) -> None:
    """Loading a dict in which a parameter has none takes its state away."""
    params, optimizer = trained(device, steps=0)
    (grads,) = gradients(params, 1)
    train(optimizer, params, [[grads[0], None, grads[2], None]])
    saved = optimizer.state_dict()
    assert sorted(saved["state"]) == [0, 2]
    again, other = trained(device, steps=2)
    other.load_state_dict(saved)
    assert [bool(other.state.get(p)) for p in again] == [True, False, True, False]
    assert sorted(other.state_dict()["state"]) == [0, 2]


# --- In place -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_loading_keeps_buffers(state: str, device: str) -> None:
    """Where the layout is the same, what a CUDA graph points into stays where it is."""
    options: dict[str, Any] = {"state": state, "master": 32, "amsgrad": True}
    params, optimizer = trained(device, dtype=torch.bfloat16, **options)
    _, source = trained(device, steps=5, dtype=torch.bfloat16, **options)
    tensors = {
        (i, key): value
        for i, p in enumerate(params)
        for key, value in optimizer.state[p].items()
        if "step" not in key
    }
    places = {key: value.data_ptr() for key, value in tensors.items()}
    optimizer.load_state_dict(source.state_dict())
    for (i, key), value in tensors.items():
        assert optimizer.state[params[i]][key] is value
        assert value.data_ptr() == places[i, key]
    assert same_state(optimizer, source)


def test_a_tensor_rate_stays_the_same_tensor(device: str) -> None:
    params, source = trained(device)
    source.param_groups[0]["lr"] = 0.125
    rate = torch.tensor(0.5, device=device)
    other = optim.AdamW(clones(params), lr=rate)
    other.load_state_dict(source.state_dict())
    assert other.param_groups[0]["lr"] is rate
    assert float(rate) == 0.125
    source.load_state_dict(other.state_dict())  # a saved tensor becomes a float where one is kept
    assert source.param_groups[0]["lr"] == 0.125
    assert isinstance(source.param_groups[0]["lr"], float)


def test_what_is_taken_and_what_stays(device: str) -> None:
    """Options of the training come with the checkpoint, formats do not."""
    params, source = trained(device, state="8bit", block_size=64, betas=(0.8, 0.9), weight_decay=0.3, seed=4)
    source.param_groups[0]["custom"] = [1, 2]
    other = optim.AdamW(clones(params), state="4bit", min_quantized_size=100, fused=True, lr=0.7)
    other.load_state_dict(source.state_dict())
    group = other.param_groups[0]
    taken = {"lr": 1e-2, "betas": (0.8, 0.9), "weight_decay": 0.3, "seed": 4, "custom": [1, 2]}
    assert {key: group[key] for key in taken} == taken
    kept = {"state": "4bit", "block_size": None, "min_quantized_size": 100, "fused": True}
    assert {key: group[key] for key in kept} == kept
    assert group["custom"] is not source.param_groups[0]["custom"]


# --- DCP ------------------------------------------------------------------------------------------

EDGES = [0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, -3e-39, 3.4e38, -3.4e38, 1.0, -1.5, float("inf")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Lion"])
@pytest.mark.parametrize("tensor_rate", [False, True])
def test_a_zero_step_changes_no_bit(name: str, dtype: torch.dtype, tensor_rate: bool, device: str) -> None:
    """Checkpointing libraries make states with a step of zero gradients and lr = 0."""
    masters = ["native", "stochastic", 24, 32] if dtype == torch.bfloat16 else ["native"]
    for state, master, maximize in itertools.product(STATES, masters, [False, True]):
        values = torch.tensor(EDGES * 10).to(dtype).to(device)
        params = [Parameter(values.clone()), *make_params(SHAPES[:1], device, dtype)]
        before = [p.detach().clone() for p in params]
        options: dict[str, Any] = {"momentum": 0.9} if name == "SGD" else {}
        rate = torch.tensor(0.0, device=device) if tensor_rate else 0.0
        optimizer = getattr(optim, name)(
            params,
            lr=rate,
            weight_decay=0.1 if name in ("AdamW", "Lion") else 0.0,
            state=state,
            master=master,
            maximize=maximize,
            min_quantized_size=0,
            **options,
        )
        for p in params:
            p.grad = torch.zeros_like(p)
        optimizer.step()
        if maximize:  # the sign of a zero may go, as with torch.optim.SGD
            assert all(torch.equal(p, b) for p, b in zip(params, before, strict=True)), (state, master)
        else:
            assert same_params(params, before), (state, master)
        assert all(len(optimizer.state[p]) > 1 for p in params)


def test_dcp_state_dict(device: str) -> None:
    """torch.distributed.checkpoint's helpers, without a process group: they make the missing states."""
    dcp = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 70).to(device=device, dtype=torch.bfloat16)
    optimizer = optim.AdamW8bit(model.parameters(), lr=1e-2, master="stochastic")
    params = list(model.parameters())
    train(optimizer, params, gradients(params, 3))
    saved = dcp.get_optimizer_state_dict(model, optimizer)
    assert set(saved["state"]) == {"weight", "bias"}
    assert saved["state"]["weight"]["exp_avg"].dtype == torch.uint8

    twin = copy.deepcopy(model)
    before = [p.detach().clone() for p in twin.parameters()]
    other = optim.AdamW8bit(twin.parameters(), master="stochastic")
    dcp.set_optimizer_state_dict(twin, other, saved)
    assert same_params(list(twin.parameters()), before)
    assert same_state(optimizer, other)
    assert other.param_groups[0]["lr"] == 1e-2
    steps = gradients(params, 2, seed=5)
    train(optimizer, params, steps)
    train(other, list(twin.parameters()), steps)
    assert same_params(params, list(twin.parameters()))


def test_dcp_flattened(device: str) -> None:
    """torchtitan's form: it asks the live states for the names of what was saved."""
    dcp = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    options = dcp.StateDictOptions(flatten_optimizer_state_dict=True)
    model = torch.nn.Linear(64, 70).to(device=device)
    params = list(model.parameters())
    optimizer = optim.AdamW8bit(params, lr=1e-2)
    train(optimizer, params, gradients(params, 3))
    saved = dcp.get_optimizer_state_dict(model, optimizer, options=options)
    assert {"state.weight.octavo_step", "state.bias.step"} <= saved.keys()
    twin = copy.deepcopy(model)
    other = optim.AdamW8bit(twin.parameters())
    dcp.set_optimizer_state_dict(twin, other, saved, options=options)
    assert same_state(optimizer, other)


# --- Other optimizers, other versions -------------------------------------------------------------


@pytest.mark.parametrize("state", ["8bit", "4bit", "4bit-rank1", "fp8"])
@pytest.mark.parametrize("theirs", ["Adam", "AdamW", "NAdam", "RAdam"])
def test_torch_refuses_codes(theirs: str, state: str, device: str) -> None:
    """It would take them for numbers. The portable form is the one to give it."""
    params, optimizer = trained(device, state=state)
    other = getattr(torch.optim, theirs)(clones(params))
    with pytest.raises(KeyError, match="step"):
        other.load_state_dict(optimizer.state_dict())
    if "W" in theirs:
        other = torch.optim.AdamW(clones(params))
        other.load_state_dict(optimizer.portable_state_dict())


@pytest.mark.parametrize("state", ["8bit", "4bit", "fp8"])
@pytest.mark.parametrize("foreach", [False, True])
def test_torchs_sgd_fails_on_codes(foreach: bool, state: str, device: str) -> None:
    """It reads no count, so its first step is the first that can fail; no weight has changed then."""
    params, optimizer = trained(device, name="SGD", state=state, momentum=0.9)
    again = clones(params)[:2]
    saved = optimizer.state_dict()
    saved["param_groups"][0]["params"] = [0, 1]
    other = torch.optim.SGD(again, momentum=0.9, foreach=foreach)
    other.load_state_dict(saved)
    other.param_groups[0]["foreach"] = foreach
    for p in again:
        p.grad = torch.ones_like(p)
    with pytest.raises(RuntimeError, match=r"size|shape"):
        other.step()
    assert same_params(params[:2], again)


def test_torch_loads_floats(device: str) -> None:
    """fp32 states are torch's own, in numbers and in names."""
    params, optimizer = trained(device)
    again = clones(params)
    other = torch.optim.AdamW(again)
    other.load_state_dict(optimizer.state_dict())
    assert frozen(other.state[again[0]]["exp_avg"]) == frozen(optimizer.state[params[0]]["exp_avg"])


def of_version_0_1(saved: dict[str, Any]) -> dict[str, Any]:
    """Codes of the parameter's shape and a plain `step`, as version 0.1 wrote them."""
    states = {}
    for number, entry in saved["state"].items():
        out = {key.removeprefix("octavo_"): value for key, value in entry.items()}
        coded = [name for name in MOMENTS if f"{name}_scale" in entry]
        states[number] = {**out, **{name: entry[name].squeeze(-1) for name in coded}}
    return {**saved, "state": states}


@pytest.mark.parametrize("state", STATES)
def test_dicts_of_version_0_1(state: str, device: str) -> None:
    params, optimizer = trained(device, state=state, dtype=torch.bfloat16, master=24)
    old = of_version_0_1(copy.deepcopy(optimizer.state_dict()))
    assert all("step" in entry for entry in old["state"].values())
    other = optim.AdamW(clones(params), state=state, master=24)
    other.load_state_dict(old)
    assert same_state(optimizer, other)


def test_names_of_the_moments() -> None:
    """The names that other files of the project read."""
    for name, options in (("AdamW", {"amsgrad": True}), ("SGD", {"momentum": 0.9}), ("Lion", {})):
        _, optimizer = trained("cpu", name=name, state="8bit", **options)
        keys = set(optimizer.state_dict()["state"][0])
        moments = {
            "AdamW": {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
            "SGD": {"momentum_buffer"},
            "Lion": {"exp_avg"},
        }[name]
        assert keys == {"octavo_step"} | moments | {f"{m}_scale" for m in moments}
        assert moments <= set(MOMENTS)
