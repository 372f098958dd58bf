"""clip_grad_norm and skip_nonfinite: clipping inside the step, and steps that leave every byte as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import OURS, STATES, gradients, make_params, same_params, same_state, snapshot, train
from octavo import optim
from octavo.optim.norms import combine
from torch import Tensor

LIMIT = 0.25


def double_norm(grads: list[Tensor]) -> float:
    return float(torch.cat([g.double().reshape(-1) for g in grads]).norm())


# --- Clipping -------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["adamw", "sgd", "lion"])
@pytest.mark.parametrize("state", ["fp32", "8bit"])
def test_clipping_is_a_factor(algorithm: str, state: str, device: str) -> None:
    """To the same bits as gradients multiplied before with max_norm / (norm + 1e-6), where that is below
    1.
    """
    params, plain = make_params(device=device), make_params(device=device)
    clipped = OURS[algorithm](params, state=state, clip_grad_norm=LIMIT)
    other = OURS[algorithm](plain, state=state)
    scales = [1.0, 1e-4, 3.0, 1e-6]  # beyond the limit and within it
    for scale, grads in zip(scales, gradients(params, 4), strict=True):
        given = [g * scale for g in grads]
        train(clipped, params, [given])
        norm = float(clipped.grad_norm)
        # Both are sums in double, in another order: 2^-52 for each of the ~9500 additions at the very most.
        assert norm == pytest.approx(double_norm(given), rel=1e-11)
        factor = torch.tensor(min(1.0, LIMIT / (norm + 1e-6)), dtype=torch.float32)
        assert (float(factor) < 1.0) == (scale > 0.1)
        train(other, plain, [[g * factor for g in given]])
        assert same_params(params, plain)


def test_clipping_as_torch(device: str) -> None:
    """torch.nn.utils.clip_grad_norm_, whose norm is a sum in float: the factor is right to about 1e-6."""
    params, plain = make_params(device=device), make_params(device=device)
    ours, theirs = optim.SGD(params, lr=0.1, clip_grad_norm=LIMIT), torch.optim.SGD(plain, lr=0.1)
    for grads in gradients(params, 3):
        before = [p.detach().clone() for p in plain]
        train(ours, params, [grads])
        for p, g in zip(plain, grads, strict=True):
            p.grad = g.to(device)
        norm = torch.nn.utils.clip_grad_norm_(plain, LIMIT)
        theirs.step()
        assert float(ours.grad_norm) == pytest.approx(float(norm), rel=1e-5)
        for p, q, b in zip(params, plain, before, strict=True):
            # The update's own error, and a rounding of the parameter on either side.
            allowed = (q - b).abs() * 1e-5 + q.abs() * 2.0**-23
            assert bool(((p - q).abs() <= allowed).all())
            p.data.copy_(q.data)


def test_the_norm_is_of_all_groups(device: str) -> None:
    """One number over every gradient of the optimizer, in any dtype and memory order."""
    (conv,) = make_params([(8, 4, 3, 3)], device)
    groups: list[dict[str, Any]] = [
        {"params": make_params([(40, 3)], device)},
        {"params": make_params([(5, 7), (0,), ()], device, torch.bfloat16), "lr": 0.5},
        {"params": [torch.nn.Parameter(conv.detach().to(memory_format=torch.channels_last))]},
    ]
    optimizer = optim.AdamW(groups, clip_grad_norm=1.0)
    params = [p for group in optimizer.param_groups for p in group["params"]]
    for grads in gradients(params, 3):
        train(optimizer, params, [grads])
        seen = [p.grad.cpu() for p in params]
        assert optimizer.grad_norm.dim() == 0
        assert optimizer.grad_norm.device.type == device
        assert float(optimizer.grad_norm) == pytest.approx(double_norm(seen), rel=1e-11)


def test_the_limit_is_an_option_of_groups(device: str) -> None:
    """It is seen where other options are, may change from step to step, and goes with a state dict."""
    params, plain = make_params(device=device), make_params(device=device)
    optimizer = optim.SGD([{"params": params[:2]}, {"params": params[2:]}], lr=1.0, clip_grad_norm=1.0)
    assert optimizer.defaults["clip_grad_norm"] == 1.0
    assert "clip_grad_norm: 1.0" in repr(optimizer)
    for limit, grads in zip((1.0, 0.5, None), gradients(params, 3), strict=True):
        optimizer.param_groups[0]["clip_grad_norm"] = limit
        before = [p.detach().clone() for p in params]
        train(optimizer, params, [grads])
        norm = double_norm(grads)
        for number, (p, b, g) in enumerate(zip(params, before, grads, strict=True)):
            factor = 1.0 if number < 2 and limit is None else min(1.0, (limit if number < 2 else 1.0) / norm)
            torch.testing.assert_close(b - p, factor * g.to(device), rtol=1e-4, atol=1e-6)
    saved = optimizer.state_dict()
    assert [group["clip_grad_norm"] for group in saved["param_groups"]] == [None, 1.0]
    groups = [{"params": plain[:2]}, {"params": plain[2:]}]
    other = optim.SGD(groups, clip_grad_norm=2.0)
    other.load_state_dict(saved)  # a number comes along as lr does; None leaves what was asked
    assert [group["clip_grad_norm"] for group in other.param_groups] == [2.0, 1.0]
    for group in saved["param_groups"]:
        del group["clip_grad_norm"]  # as version 0.1 has written it
    other = optim.SGD(groups, clip_grad_norm=2.0)
    other.load_state_dict(saved)
    assert [group["clip_grad_norm"] for group in other.param_groups] == [2.0, 2.0]
    optimizer.param_groups[1]["clip_grad_norm"] = 0.0
    with pytest.raises(ValueError, match=r"Invalid clip_grad_norm: 0.0, expected a positive number or None"):
        train(optimizer, params, gradients(params, 1))


def test_parts_of_a_norm() -> None:
    """Of several devices: the sums of squares and the counts add up, the maximum is the largest."""
    parts = [torch.tensor([3.0, 2.0, 0.0], dtype=torch.float64), torch.tensor([4.0, 1.0, 0.0]).double()]
    for part, count in zip(parts, (2, 5), strict=True):
        part.view(torch.int64)[2] = count
    whole = combine(parts)
    assert whole[:2].tolist() == [5.0, 2.0]
    assert int(whole.view(torch.int64)[2]) == 7


def test_parameters_on_two_devices(device: str) -> None:
    if device == "cpu":
        pytest.skip("needs a second device")
    params = [*make_params([(40, 3)], "cuda"), *make_params([(50,)], "cpu", seed=2)]
    plain = [torch.nn.Parameter(p.detach().cpu().clone()) for p in params]
    ours, other = (optim.AdamW(its, clip_grad_norm=0.1, skip_nonfinite=True) for its in (params, plain))
    steps = gradients(params, 3)
    steps[1][1][3] = float("inf")
    for grads in steps:
        train(ours, params, [grads])
        train(other, plain, [grads])
        assert ours.last_step_skipped() == other.last_step_skipped()
    # The norm's sum is made of two parts: the factor may differ in its last bit.
    for p, q in zip(params, plain, strict=True):
        torch.testing.assert_close(p.cpu(), q, rtol=1e-6, atol=1e-8)


def test_a_norm_that_was_read_does_not_change(device: str) -> None:
    """People keep them in lists, to print later."""
    params = make_params(device=device)
    optimizer = optim.AdamW(params, clip_grad_norm=1.0)
    assert optimizer.grad_norm is None
    steps, kept = gradients(params, 3), []
    for scale, grads in zip((1.0, 2.0, 4.0), steps, strict=True):
        train(optimizer, params, [[g * scale for g in grads]])
        kept.append(optimizer.grad_norm)
    wanted = [s * double_norm(grads) for s, grads in zip((1.0, 2.0, 4.0), steps, strict=True)]
    assert [float(k) for k in kept] == pytest.approx(wanted)


def test_clipping_without_a_guard_spreads_what_is_not_finite_as_torch(device: str) -> None:
    for bad in (float("inf"), float("nan")):
        params, plain = make_params(device=device), make_params(device=device)
        (grads,) = gradients(params, 1)
        grads[2][3] = bad
        train(optim.SGD(params, clip_grad_norm=1.0), params, [grads])
        for p, g in zip(plain, grads, strict=True):
            p.grad = g.to(device)
        torch.nn.utils.clip_grad_norm_(plain, 1.0)
        torch.optim.SGD(plain).step()
        for p, q in zip(params, plain, strict=True):
            assert torch.equal(p.isnan(), q.isnan())


def test_gradients_that_come_and_go_are_counted_as_they_are(device: str) -> None:
    params = make_params(device=device)
    optimizer = optim.AdamW(params, clip_grad_norm=1.0)
    (grads,) = gradients(params, 1)
    for here in ([0, 1, 2, 3], [1], [0, 3], [0, 1, 2, 3]):
        train(optimizer, params, [[g if i in here else None for i, g in enumerate(grads)]])
        assert float(optimizer.grad_norm) == pytest.approx(double_norm([grads[i] for i in here]))


# --- The guard ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan"), 1e30])
def test_a_step_that_is_skipped_writes_nothing(bad: float, state: str, device: str) -> None:
    """One such element anywhere, and no byte of any group changes. 1e30: its square is infinite in fp32."""
    params = make_params([*[(40, 130), (4096,)], (17,)], device, torch.bfloat16)
    optimizer = optim.AdamW(
        [{"params": params[:2]}, {"params": params[2:], "lr": 0.5}],
        state=state,
        master=24,
        amsgrad=True,
        skip_nonfinite=True,
    )
    steps = gradients(params, 4)
    train(optimizer, params, steps[:2])
    assert not optimizer.last_step_skipped()
    before = snapshot(optimizer)
    for place in range(3):
        spoiled = [g.clone() for g in steps[2]]
        spoiled[place].view(-1)[-1] = bad
        train(optimizer, params, [spoiled])
        assert snapshot(optimizer) == before
        assert optimizer.last_step_skipped()
    train(optimizer, params, [steps[3]])
    assert not optimizer.last_step_skipped()
    assert [int(optimizer.state[p]["step"]) for p in params] == [3, 3, 3]


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("algorithm", ["adamw", "sgd", "lion"])
def test_the_next_step_is_the_next(algorithm: str, clip: float | None, device: str) -> None:
    """As if the skipped one had never been: bias corrections, first momenta, random bits."""
    options: dict[str, Any] = {"momentum": 0.9, "dampening": 0.5} if algorithm == "sgd" else {}
    dtype = torch.bfloat16
    params, plain = make_params(device=device, dtype=dtype), make_params(device=device, dtype=dtype)
    options.update(state="8bit", master="stochastic", clip_grad_norm=clip)
    guarded = OURS[algorithm](params, skip_nonfinite=True, **options)
    other = OURS[algorithm](plain, **options)
    steps = gradients(params, 5)
    bad = [torch.full_like(g, float("nan")) for g in steps[0]]
    train(guarded, params, [bad, steps[0], bad, bad, *steps[1:], bad])
    train(other, plain, steps)
    assert same_params(params, plain)
    assert [int(guarded.state[p]["step"]) for p in params] == [5] * 4
    for p, q in zip(params, plain, strict=True):
        for key, value in other.state[q].items():
            if "step" not in key:
                assert torch.equal(guarded.state[p][key].view(torch.uint8), value.view(torch.uint8)), key


def test_the_count_of_a_guarded_step_goes_with_the_checkpoint(device: str) -> None:
    params = make_params(device=device)
    guarded = optim.AdamW8bit(params, skip_nonfinite=True)
    steps = gradients(params, 4)
    bad = [torch.full_like(g, float("inf")) for g in steps[0]]
    train(guarded, params, [steps[0], bad, steps[1]])
    again = [torch.nn.Parameter(p.detach().clone()) for p in params]
    plain = optim.AdamW8bit(again)
    plain.load_state_dict(guarded.state_dict())
    assert [int(plain.state[p]["step"]) for p in again] == [2] * 4
    train(guarded, params, steps[2:])
    train(plain, again, steps[2:])
    assert same_params(params, again)
    back = optim.AdamW8bit(params, skip_nonfinite=True)
    back.load_state_dict(plain.state_dict())
    assert same_state(back, guarded)


def test_nothing_is_reported_without_a_guard(device: str) -> None:
    params = make_params(device=device)
    optimizer = optim.AdamW(params)
    train(optimizer, params, gradients(params, 1))
    assert not optimizer.last_step_skipped()
    assert optimizer.grad_norm is None
