"""What user code writes into optimizer.state between two steps: moments reset, step counts changed, one
parameter at a time.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from models import (
    STATES,
    clones,
    count_calls,
    frozen,
    gradients,
    refused,
    same_params,
    train,
    trained,
)
from octavo import optim
from torch import Tensor
from torch.nn import Parameter

MOMENTS = ("exp_avg", "exp_avg_sq")


def moments(optimizer: optim.Optimizer, place: int = 0) -> list[Tensor]:
    """What the moments of a parameter mean."""
    entry = optimizer.portable_state_dict()["state"][place]
    return [entry[name] for name in MOMENTS]


# --- Moments --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
def test_zeroed_moments_are_zero(state: str, device: str) -> None:
    """The usual way to reset them. Codes of zero are not zeros in every format."""
    params, optimizer = trained(device, state=state, min_quantized_size=0)
    kept = optimizer.state[params[1]]["exp_avg"]
    others = frozen(moments(optimizer, 2))
    for name in MOMENTS:
        optimizer.state[params[0]][name].zero_()
    assert all(not bool(m.any()) for m in moments(optimizer))
    kept.zero_()  # a tensor that was asked for before
    (grads,) = gradients(params, 1, seed=9)
    fresh = clones(params)
    # As a run of the same gradients that has begun anew, but for the count.
    other = optim.AdamW(fresh, lr=1e-2, state=state, min_quantized_size=0)
    other.load_state_dict(optimizer.state_dict())
    assert not bool(moments(other, 1)[0].any())
    assert frozen(moments(other, 2)) == others
    train(optimizer, params, [grads])
    train(other, fresh, [grads])
    assert same_params(params, fresh)
    step = moments(optimizer)[0].abs().max()
    assert float(step) <= float(grads[0].abs().max()) * 0.1 * 1.1


@pytest.mark.parametrize("state", ["8bit", "4bit"])
def test_codes_written_without_scales_are_refused(state: str, device: str) -> None:
    """Not knowing what they mean, a step would be a jump: a part set to zero, other numbers."""
    params, optimizer = trained(device, state=state)
    codes = optimizer.state[params[1]]["exp_avg"]
    codes[: codes.numel() // 2] = 0
    message = "parameter 1 of group 0: exp_avg was written to and exp_avg_scale was not"
    for call in (optimizer.step, optimizer.state_dict, optimizer.portable_state_dict):
        with refused(optimizer, RuntimeError, message):
            call()
    optimizer.reset_state(params[1])
    optimizer.step()
    codes.fill_(3)
    optimizer.state[params[1]]["exp_avg_scale"].fill_(0.5)  # whoever writes both knows what they mean
    optimizer.step()


@pytest.mark.parametrize("state", ["fp32", "bf16", "fp8"])
def test_moments_may_be_changed_where_zero_is_zero(state: str, device: str) -> None:
    params, optimizer = trained(device, state=state)
    entry = optimizer.state[params[0]]
    with pytest.MonkeyPatch.context() as patch:
        calls = count_calls(patch)
        for _ in range(3):
            entry["exp_avg"].view(torch.uint8)[:2] = 0
            optimizer.step()
        assert len(calls) == 3
    entry["exp_avg"].view(torch.uint8)[:2] = 0
    assert not bool(moments(optimizer)[0][:2].any())


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", ["AdamW", "SGD", "Lion"])
def test_reset_state(name: str, state: str, device: str) -> None:
    """One parameter, or all, begin anew; master bits stay with their weight."""
    options: dict[str, Any] = {"state": state, "master": 32, "min_quantized_size": 0}
    if name == "SGD":
        options.update(momentum=0.9, dampening=0.5)
    params, optimizer = trained(device, name=name, dtype=torch.bfloat16, **options)
    masters = frozen(list(optimizer.master_parameters().values()))
    (grads,) = gradients(params, 1, seed=9)
    places = [t.data_ptr() for t in optimizer.entries()[0][1].values() if t.dim()]
    optimizer.reset_state(params[0])
    assert [t.data_ptr() for t in optimizer.entries()[0][1].values() if t.dim()] == places
    assert [int(optimizer.state[p]["step"]) for p in params] == [0, 3, 3, 3]
    optimizer.reset_state()
    assert [int(optimizer.state[p]["step"]) for p in params] == [0] * 4
    assert frozen(list(optimizer.master_parameters().values())) == masters
    fresh = clones(params)
    other = getattr(optim, name)(fresh, lr=optimizer.param_groups[0]["lr"], **options)
    saved = other.state_dict()
    train(other, fresh, [[torch.zeros_like(p) for p in params]])  # makes the states
    saved = other.state_dict()
    for number, entry in saved["state"].items():
        entry["master"] = optimizer.state_dict()["state"][number]["master"]
        entry["octavo_step" if "octavo_step" in entry else "step"].zero_()
    other.load_state_dict(saved)
    train(optimizer, params, [grads])
    train(other, fresh, [grads])
    assert frozen(optimizer.master_parameters()[params[0]]) == frozen(other.master_parameters()[fresh[0]])


def test_reset_state_of_a_stranger(device: str) -> None:
    params, optimizer = trained(device)
    with pytest.raises(ValueError, match="AdamW: reset_state got a tensor that is not a parameter"):
        optimizer.reset_state(Parameter(params[0].detach().clone()))
    optim.AdamW(params).reset_state(params[0])  # without a state


# --- Step counts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"state": "8bit"}, {"skip_nonfinite": True}], ids=str)
def test_step_counts_are_each_parameters_own(options: dict[str, Any], device: str) -> None:
    """All step together and share a count, but nobody sees that."""
    params, optimizer = trained(device, **options)
    for p in params:
        optimizer.state[p]["step"] += 100
    assert [int(optimizer.state[p]["step"]) for p in params] == [103] * 4
    held = optimizer.state[params[0]]["step"].zero_()
    assert [int(optimizer.state[p]["step"]) for p in params] == [0, 103, 103, 103]
    steps = gradients(params, 3, seed=9)
    fresh = clones(params)
    other = optim.AdamW(fresh, lr=1e-2, **options)
    other.load_state_dict(optimizer.state_dict())
    train(optimizer, params, steps)
    train(other, fresh, steps)
    assert same_params(params, fresh)
    assert int(held) == 3  # it goes on counting
    assert [int(optimizer.state[p]["step"]) for p in params] == [3, 106, 106, 106]
    assert frozen(optimizer.state_dict()["state"]) == frozen(other.state_dict()["state"])


def test_reading_counts_keeps_one_call(device: str) -> None:
    params, optimizer = trained(device)
    counts = [optimizer.state[p]["step"] for p in params]
    assert len({id(count) for count in counts}) == 4
    with pytest.MonkeyPatch.context() as patch:
        calls = count_calls(patch)
        train(optimizer, params, gradients(params, 2))
        assert len(calls) == 2
        counts[3].add_(1)
        train(optimizer, params, gradients(params, 1))
        assert len(calls) == 4
        counts[3].sub_(1)
        train(optimizer, params, gradients(params, 1))
        assert len(calls) == 5
    assert list(map(int, counts)) == [7] * 4


def test_a_count_of_somebodys_own(device: str) -> None:
    params, optimizer = trained(device, state="8bit")
    mine = torch.tensor(40, dtype=torch.int64)
    optimizer.state[params[0]]["step"] = mine
    optimizer.step()
    assert int(mine) == 41
    assert optimizer.state[params[0]]["step"] is mine
    assert int(optimizer.state[params[1]]["step"]) == 4
    assert "step" in optimizer.state[params[0]]
    assert set(optimizer.state[params[0]]) == set(optimizer.state_dict()["state"][0])


def test_counts_read_in_inference_mode(device: str) -> None:
    params, optimizer = trained(device)
    with torch.inference_mode():
        count = optimizer.state[params[0]]["step"]
        assert int(count) == 3
    train(optimizer, params, gradients(params, 2))
    assert int(count) == 5
    count.zero_()
    optimizer.step()
    assert [int(optimizer.state[p]["step"]) for p in params] == [1, 6, 6, 6]


def test_counts_beside_a_captured_graph(device: str) -> None:
    """A graph steps its parameters with one count, so that all of them begin anew, or none."""
    params, optimizer = trained(device)
    optimizer._captured.append(object())  # what a capture leaves behind
    counts = [optimizer.state[p]["step"] for p in params]
    optimizer.step()
    assert [int(count) for count in counts] == [4] * 4
    with refused(optimizer, RuntimeError, r"share a step count: reset_state\(\) resets all"):
        optimizer.reset_state(params[0])
    optimizer.reset_state()
    optimizer.step()
    assert [int(count) for count in counts] == [1] * 4
    assert optimizer.state[params[3]]["step"] is counts[3]


def test_copies_and_pickles_hand_nothing_out(device: str) -> None:
    params, optimizer = trained(device, state="8bit")
    optimizer.state_dict(), optimizer.portable_state_dict(), optimizer.state_bytes(), repr(optimizer)
    assert not any(optimizer.state[p].exposed for p in params)
    assert dict(optimizer.state[params[0]]).keys() == set(optimizer.state[params[0]])
    assert optimizer.state[params[0]].exposed


# --- Threads --------------------------------------------------------------------------------------


def test_state_dicts_in_threads(device: str) -> None:
    """A checkpoint in the background beside one in the foreground."""
    params, optimizer = trained(device, state="8bit")
    expected, found, errors = frozen(optimizer.state_dict()), [], []
    seen = []
    optimizer.register_state_dict_post_hook(lambda _, saved: seen.append(len(saved["state"])))

    def save() -> None:
        try:
            found.extend(frozen(optimizer.state_dict()) == expected for _ in range(100))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=save) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (errors, found) == ([], [True] * 400)
    assert seen == [len(params)] * 400
