"""torch.amp.GradScaler: the plain path (unscale, then perhaps no step) and fused=True, where the step itself
takes the scale and the found-inf; with an overflow in the middle, as torch.optim.AdamW does it.

A loss sum(p * g) has the gradient g, and a power of two as scale makes it exact.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from models import Beside, gradients, make_params, same_params, train
from octavo import optim
from rounding import ratio
from torch import Tensor
from torch.amp import GradScaler
from torch.nn import Parameter

SCALE = 2.0**10
STEPS = 6
OVERFLOW = 3  # the step whose gradients are infinite once scaled


def scaler_on(device: str) -> GradScaler:
    return GradScaler(device, init_scale=SCALE, growth_interval=4)


def given(params: Any, steps: int = STEPS) -> list[list[Tensor]]:
    out = gradients(params, steps)
    out[OVERFLOW][0].view(-1)[5] = 3e38
    return out


def scaled_backward(scaler: GradScaler, params: list[Parameter], grads: list[Tensor]) -> None:
    for p in params:
        p.grad = None
    losses = [(p * g.to(p.device, p.dtype)).sum() for p, g in zip(params, grads, strict=True)]
    scaler.scale(torch.stack(losses).sum()).backward()


@pytest.mark.parametrize("fused", [None, True])
def test_beside_torch(fused: bool | None, device: str) -> None:
    """Rates, counts, scales and parameters follow torch's, through an overflow."""
    beside = Beside("adamw", make_params(device=device), weight_decay=0.1, ours={"fused": fused})
    mine, theirs = scaler_on(device), scaler_on("cpu")
    for count, grads in enumerate(given(beside.params)):
        kept = [p.detach().clone() for p in beside.params]
        scaled_backward(mine, beside.params, grads)
        mine.step(beside.ours)
        mine.update()
        scaled_backward(theirs, beside.copies, grads)
        if count == OVERFLOW:
            theirs.step(beside.theirs)
            assert same_params(beside.params, kept)
        else:
            before = {id(p): beside._tensors(p) for p in beside.copies}
            theirs.unscale_(beside.theirs)
            beside.advance(before)
        theirs.update()
        assert mine.get_scale() == theirs.get_scale()
        taken = count + 1 - (count >= OVERFLOW)
        assert beside.steps_taken() == [(taken, taken)] * 4
    assert mine.get_scale() != SCALE
    assert not hasattr(beside.ours, "found_inf")


def test_beside_torchs_fused(device: str) -> None:
    """torch.optim.AdamW(fused=True) with its own scaler: twice the bound, once for each side."""
    beside = Beside("adamw", make_params(device=device), ours={"fused": True})
    torchs = [Parameter(p.detach().clone()) for p in beside.copies]
    reference = torch.optim.AdamW(torchs, fused=True)
    mine, theirs = scaler_on(device), scaler_on("cpu")
    for count, grads in enumerate(given(beside.params)):
        for scaler, optimizer, params in ((mine, beside.ours, beside.params), (theirs, reference, torchs)):
            scaled_backward(scaler, params, grads)
            scaler.step(optimizer)
            scaler.update()
        if count != OVERFLOW:
            for copy_, grad in zip(beside.copies, grads, strict=True):
                copy_.grad = grad.clone()
            beside.advance({id(p): beside._tensors(p) for p in beside.copies})
        for p, q, bounding in zip(beside.params, torchs, beside.copies, strict=True):
            bound = beside.bounds[id(bounding)].param
            assert ratio(p.detach().cpu(), q.detach(), 2 * bound) <= 1.0
            assert int(beside.ours.state[p]["step"]) == int(reference.state[q]["step"])
        assert mine.get_scale() == theirs.get_scale()


@pytest.mark.parametrize(
    "options", [{"state": "8bit"}, {"state": "4bit", "clip_grad_norm": 0.1}, {}], ids=str
)
def test_both_paths_are_the_same_steps(options: dict[str, Any], device: str) -> None:
    """And both are those of unscaled gradients without a scaler, to the last bit."""
    runs = {}
    for how in ("plain", "fused", "no scaler"):
        params = make_params(device=device)
        optimizer = optim.AdamW(params, fused=how == "fused", **options)
        scaler = scaler_on(device)
        for count, grads in enumerate(given(params)):
            if how == "no scaler":
                if count != OVERFLOW:
                    train(optimizer, params, [grads])
                continue
            scaled_backward(scaler, params, grads)
            scaler.step(optimizer)
            scaler.update()
        runs[how] = params
    assert same_params(runs["plain"], runs["fused"])
    assert same_params(runs["plain"], runs["no scaler"])


def test_unscaled_by_hand(device: str) -> None:
    """unscale_ and torch's clipping before a fused step: the step must not unscale again."""
    runs = []
    for fused in (False, True):
        params = make_params(device=device)
        optimizer, scaler = optim.AdamW(params, fused=fused), scaler_on(device)
        for grads in given(params):
            scaled_backward(scaler, params, grads)
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(params, 0.5)
            scaler.step(optimizer)
            scaler.update()
        runs.append(params)
        assert int(optimizer.state[params[0]]["step"]) == STEPS - 1
    assert same_params(*runs)


def test_the_norm_is_of_unscaled_gradients(device: str) -> None:
    """Clipping in a fused step compares the limit with it, and that is what is reported."""
    params = make_params(device=device)
    optimizer, scaler = optim.AdamW(params, fused=True, clip_grad_norm=0.1), scaler_on(device)
    for grads in gradients(params, 3):
        scaled_backward(scaler, params, grads)
        scaler.step(optimizer)
        scaler.update()
        norm = torch.cat([g.double().view(-1) for g in grads]).norm()
        assert float(optimizer.grad_norm) == pytest.approx(float(norm), rel=1e-6)


def test_gradients_stay_scaled_in_a_fused_step(device: str) -> None:
    """The step reads them and writes nothing there."""
    params = make_params(device=device)
    optimizer, scaler = optim.AdamW(params, fused=True), scaler_on(device)
    (grads,) = gradients(params, 1)
    scaled_backward(scaler, params, grads)
    scaler.step(optimizer)
    assert all(torch.equal(p.grad.cpu(), g * SCALE) for p, g in zip(params, grads, strict=True))


def test_a_guard_beside_a_scaler(device: str) -> None:
    """Each of the two may skip; the count is of the steps that were taken."""
    params = make_params(device=device)
    optimizer = optim.AdamW8bit(params, fused=True, skip_nonfinite=True)
    scaler = scaler_on(device)
    for grads in given(params):
        scaled_backward(scaler, params, grads)
        scaler.step(optimizer)
        scaler.update()
    assert int(optimizer.state[params[0]]["step"]) == STEPS - 1


@pytest.mark.parametrize("how", ["deepcopy", "group"])
def test_fused_is_seen_by_the_scaler(how: str, device: str) -> None:
    """The flag that GradScaler asks for, also on a copy and for a group's own option."""
    params = make_params(device=device)
    plain = optim.AdamW(params)
    assert not getattr(plain, "_step_supports_amp_scaling", False)
    if how == "deepcopy":
        optimizer = copy.deepcopy(optim.AdamW(params, fused=True))
    else:
        optimizer = optim.AdamW([{"params": params, "fused": True}])
    assert optimizer._step_supports_amp_scaling


def test_fp16_parameters_with_fused_scaling(device: str) -> None:
    """GradScaler refuses to unscale fp16 gradients itself; the fused step unscales in fp32."""
    params = make_params(device=device, dtype=torch.float16)
    plain = make_params(device=device, dtype=torch.float16)
    optimizer, other, scaler = optim.AdamW(params, fused=True), optim.AdamW(plain), scaler_on(device)
    for grads in gradients(params, 3):
        normal = [torch.where(g.abs() < 1e-3, 1e-3, g).half() for g in grads]  # so are they times the scale
        scaled_backward(scaler, params, normal)
        scaler.step(optimizer)
        scaler.update()
        train(other, plain, [normal])
    assert same_params(params, plain)


def test_one_fused_group_beside_another(device: str) -> None:
    """The scaler leaves skipping to the step as soon as one group is fused; no group counts a skipped one."""
    params = make_params(device=device)
    optimizer = optim.AdamW([{"params": params[:2], "fused": True}, {"params": params[2:]}])
    scaler = scaler_on(device)
    for grads in given(params):
        scaled_backward(scaler, params, grads)
        scaler.step(optimizer)
        scaler.update()
    assert [int(optimizer.state[p]["step"]) for p in params] == [STEPS - 1] * 4
