"""What others do to parameters between two steps: other dtypes and devices, new storage, new parameters in a
group. Nothing may be remembered that is no longer so.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

import pytest
import torch
from models import (
    STATES,
    Beside,
    count_calls,
    frozen,
    gradients,
    make_params,
    moments_of,
    same_params,
    set_grads,
    train,
)
from octavo import optim
from torch import nn
from torch.nn import Parameter

OTHER = {"cpu": "cuda", "cuda": "cpu"}


# --- Parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    ("first", "then"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)], ids=str
)
def test_another_dtype(first: torch.dtype, then: torch.dtype, state: str, device: str) -> None:
    """model.to(dtype) between two steps: moments stay, and the next step is that of the new parameter."""
    model = nn.Linear(70, 64).to(device=device, dtype=first)
    params = list(model.parameters())
    steps = gradients(params, 4)
    optimizer = optim.AdamW(params, lr=1e-2, state=state)
    train(optimizer, params, steps[:2])
    kept = moments_of(optimizer)
    model.to(then)
    assert frozen(moments_of(optimizer)) == frozen(kept)
    # A new optimizer over parameters that always had this dtype, with the moments loaded.
    again = [Parameter(p.detach().clone()) for p in params]
    other = optim.AdamW(again, lr=1e-2, state=state)
    other.load_state_dict(optimizer.state_dict())
    train(optimizer, params, steps[2:])
    train(other, again, steps[2:])
    assert params[0].dtype == then
    assert same_params(params, again)


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
@pytest.mark.parametrize("master", ["stochastic", 24, 32])
def test_masters_come_and_go_with_bf16(master: Any, name: str, device: str) -> None:
    """Master bits are of the bf16 parameter that was: after a step in fp32 they start anew, with a word."""
    model = nn.Linear(70, 64).to(device=device, dtype=torch.bfloat16)
    params = list(model.parameters())
    steps = gradients(params, 4)
    optimizer = getattr(optim, name)(params, lr=1e-2, master=master)
    kept = {24: torch.int8, 32: torch.int16}.get(master)

    def dtype_of_master() -> Any:
        found = optimizer.state[params[0]].get("master")
        return None if found is None else found.dtype

    train(optimizer, params, steps[:2])
    assert dtype_of_master() == kept
    model.float()
    saved = optimizer.state_dict()["state"][0]
    assert ("master" in saved) == (kept is not None)  # saving takes nothing away
    with pytest.warns(UserWarning, match="master's further bits") if kept else contextlib.nullcontext():
        train(optimizer, params, steps[2:3])
    assert dtype_of_master() is None  # an fp32 parameter is its own
    model.bfloat16()
    again = [Parameter(p.detach().clone()) for p in params]
    other = getattr(optim, name)(again, lr=1e-2, master=master)
    other.load_state_dict(optimizer.state_dict())
    train(optimizer, params, steps[3:])
    train(other, again, steps[3:])
    assert dtype_of_master() == kept
    assert same_params(params, again)


@pytest.mark.parametrize(("first", "then"), [(24, 32), (32, 24), (32, "native"), ("stochastic", 24)])
def test_another_master_in_mid_training(first: Any, then: Any, device: str) -> None:
    """Bits of another width are converted, as a load does; where none are kept, they go with a warning."""
    params = make_params([(64, 70)], device, torch.bfloat16)
    steps = gradients(params, 3)
    optimizer = optim.AdamW(params, lr=1e-2, master=first)
    train(optimizer, params, steps[:2])
    again = [Parameter(p.detach().clone()) for p in params]
    other = optim.AdamW(again, lr=1e-2, master=then)
    lost = first in (24, 32) and then not in (24, 32)
    said = pytest.warns(UserWarning, match="master") if lost else contextlib.nullcontext()
    with said:
        other.load_state_dict(optimizer.state_dict())
    optimizer.param_groups[0]["master"] = then
    with said:
        train(optimizer, params, steps[2:])
    train(other, again, steps[2:])
    assert same_params(params, again)
    if then == 32:
        assert bool((optimizer.state[params[0]]["master"] & 0xFF).any())


def test_another_device(device: str) -> None:
    """model.to(device): states follow at the next step, in one call as before, to the same bits."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    for options in ({"state": "8bit"}, {"state": "4bit"}, {"fused": True}, {"skip_nonfinite": True}):
        model = nn.Linear(70, 64).to(device)
        params, stay = list(model.parameters()), [Parameter(p.detach().clone()) for p in model.parameters()]
        optimizer, other = optim.AdamW(params, **options), optim.AdamW(stay, **options)
        steps = gradients(params, 6)
        train(other, stay, steps)
        train(optimizer, params, steps[:2])
        model.to(OTHER[device])
        with pytest.MonkeyPatch.context() as patch:
            calls = count_calls(patch)
            train(optimizer, params, steps[2:4])
            assert calls == [2, 2]
        assert optimizer.state[params[0]]["exp_avg"].device.type == OTHER[device]
        model.to(device)
        train(optimizer, params, steps[4:])
        assert same_params(params, stay)


def test_counts_follow_together(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step counts that come from elsewhere (a copied state, another mode) are one count again."""
    params = make_params([(9,), (10,), (11,)], device)
    optimizer = optim.AdamW(params)
    steps = gradients(params, 3)
    train(optimizer, params, steps[:1])
    optimizer.param_groups[0]["fused"] = True  # counts move to the device
    calls = count_calls(monkeypatch)
    train(optimizer, params, steps[1:])
    assert calls == [3, 3]
    assert [int(optimizer.state[p]["step"]) for p in params] == [3, 3, 3]


def test_new_storage(device: str) -> None:
    """p.data = ...: the step goes to the new memory, and the old one is left alone."""
    params = make_params(device=device)
    beside = Beside("adamw", params)
    steps = gradients(params, 6)
    for grads in steps[:2]:
        beside.step(grads)
    for grads in steps[2:]:
        old = [p.data for p in params]
        kept = [o.clone() for o in old]
        for p in params:
            p.data = p.data.clone()
        beside.step(grads)
        assert same_params(old, kept)


def test_memory_of_a_moved_parameter_used_anew(device: str) -> None:
    """By the state of another one, or by its gradient, while the moved one has no gradient."""
    for by_grad in (False, True):
        first, second = make_params([(64,), (64,)], device)
        plain = [Parameter(p.detach().clone()) for p in (first, second)]
        optimizer, other = optim.AdamW([first, second]), optim.AdamW(plain)
        (a, b), (_, c), (d, e) = gradients([first, second], 3)
        train(optimizer, [first, second], [[a, b]])
        old, first.data = first.data, first.data.clone()
        if by_grad:
            first.grad, second.grad = None, old.copy_(c)
            optimizer.step()
        else:
            optimizer.state[second]["exp_avg"] = old.copy_(optimizer.state[second]["exp_avg"])
            train(optimizer, [first, second], [[None, c]])
        train(optimizer, [first, second], [[d, e]])
        train(other, plain, [[a, b], [None, c], [d, e]])
        assert same_params([first, second], plain)
        assert frozen(moments_of(optimizer)) == frozen(moments_of(other))


def test_a_gradient_in_the_memory_of_a_parameter(device: str) -> None:
    params = make_params([(64,), (64,)], device)
    optimizer = optim.AdamW([("a", params[0]), ("b", params[1])])
    params[0].grad, params[1].grad = params[1].data, torch.ones_like(params[1])
    before = frozen(params)
    with pytest.raises(RuntimeError, match=r"AdamW: parameter 'a': .* must not share memory"):
        optimizer.step()
    assert frozen(params) == before


def test_storage_taken_away_and_given_back(device: str) -> None:
    """As sharding libraries do: the data is empty between steps."""
    params = make_params(device=device)
    beside = Beside("adamw", params)
    for grads in gradients(params, 4):
        for p in params:
            size, data = p.data.shape, p.data.clone()
            p.data = torch.empty(0, device=device)
            p.data = data.view(size)
        beside.step(grads)


def test_the_same_memory_seen_otherwise(device: str) -> None:
    """A square parameter transposed in place has its address and size still, but not its order."""
    (param,) = make_params([(64, 64)], device)
    optimizer = optim.AdamW8bit([param])
    steps = gradients([param], 2)
    train(optimizer, [param], steps[:1])
    param.data = param.data.t()
    set_grads([param], steps[1])
    before = frozen(param)
    with pytest.raises(RuntimeError, match="keep their shape and memory format"):
        optimizer.step()
    assert frozen(param) == before


def test_parameters_replaced_in_a_group(device: str) -> None:
    """Accelerate under FSDP2 puts other parameters into the groups after construction."""
    first, second = make_params(device=device), make_params(device=device)
    optimizer, plain = optim.AdamW8bit(first), make_params(device=device)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.param_groups[0]["params"] = second
    steps = gradients(second, 3)
    train(optimizer, second, steps)
    train(optim.AdamW8bit(plain), plain, steps)
    assert same_params(second, plain)
    assert same_params(first, make_params(device=device))
    assert len(optimizer.state_dict()["state"]) == 4


def test_parameters_replaced_in_mid_training(device: str) -> None:
    """The states are handed over with them; one parameter is replaced in the list itself."""
    params, plain = make_params(device=device), make_params(device=device)
    optimizer, other = optim.AdamW8bit(params), optim.AdamW8bit(plain)
    steps = gradients(params, 4)
    train(optimizer, params, steps[:2])
    new = [Parameter(p.detach().clone()) for p in params]
    for old, fresh in zip(params, new, strict=True):
        optimizer.state[fresh] = optimizer.state.pop(old)
    optimizer.param_groups[0]["params"][:] = new
    train(optimizer, new, steps[2:])
    train(other, plain, steps)
    assert same_params(new, plain)


def test_a_parameter_that_was_removed_is_freed(device: str) -> None:
    params = make_params(device=device)
    optimizer = optim.AdamW8bit(params)
    steps = gradients(params, 2)
    train(optimizer, params, steps[:1])
    gone = weakref.ref(params[0])
    del optimizer.state[params[0]]
    optimizer.param_groups[0]["params"].pop(0)
    params.pop(0)
    train(optimizer, params, [steps[1][1:]])
    gc.collect()
    assert gone() is None


def test_tensors_swapped(device: str) -> None:
    """model.to() of sharded parameters swaps tensors, which torch refuses where a weak reference is held."""
    params = make_params(device=device)
    beside = Beside("adamw", params)
    steps = gradients(params, 4)
    for grads in steps[:2]:
        beside.step(grads)
    for p in params:
        p.grad = None
        torch.utils.swap_tensors(p, Parameter(p.detach().clone()))
    for grads in steps[2:]:
        beside.step(grads)


def test_another_size_at_the_same_address(device: str) -> None:
    """With a gradient from before: memory behind the parameter is not written."""
    memory = torch.ones(4096, device=device)
    param = Parameter(memory)
    optimizer = optim.AdamW([param])
    param.grad = torch.ones_like(param)
    optimizer.step()
    param.data = memory[:10]
    kept = memory.clone()
    with pytest.raises(RuntimeError, match=r"its gradient has shape \(4096,\), expected \(10,\)"):
        optimizer.step()
    assert same_params([memory], [kept])


def test_a_group_that_was_removed_is_freed(device: str) -> None:
    first, second = make_params([(20,), (30,)], device)
    optimizer = optim.AdamW([{"params": [first]}, {"params": [second]}])
    train(optimizer, [first, second], gradients([first, second], 1))
    watched = weakref.ref(second)
    optimizer.param_groups.pop()
    del optimizer.state[second], second
    train(optimizer, [first], gradients([first], 1))
    gc.collect()
    assert watched() is None
