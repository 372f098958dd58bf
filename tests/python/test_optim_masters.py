"""What a bf16 parameter keeps beyond its 16 bits: stochastic rounding by seed, 24 and 32 bits of a master."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import STATES, Beside, gradients, make_params, same_params, set_grads, train
from octavo import optim
from torch import Tensor
from torch.nn import Parameter

BF16 = torch.bfloat16


def rounded(values: Tensor) -> Tensor:
    """To bf16, ties up in magnitude: docs/formats.md, bf16+16."""
    bits = values.detach().cpu().contiguous().view(torch.int32)
    return (((bits + 0x8000) >> 16).to(torch.int16)).view(BF16)


# --- Stochastic rounding --------------------------------------------------------------------------


def run(seed: int, device: str, state: str = "8bit", ids: int = 0) -> list[Parameter]:
    params = make_params([(64, 64), (100,)], device, BF16)
    before = make_params([(3,)] * ids, device, BF16) if ids else []
    optimizer = optim.AdamW([*before, *params], lr=1e-4, state=state, master="stochastic", seed=seed)
    train(optimizer, params, gradients(params, 4))
    return params


@pytest.mark.parametrize("state", ["fp32", "8bit", "bf16"])
def test_the_seed_decides(state: str, device: str) -> None:
    assert same_params(run(3, device, state), run(3, device, state))
    assert not same_params(run(3, device, state), run(4, device, state))


def test_parameters_have_their_own_bits(device: str) -> None:
    """Two equal parameters do not round alike, and a parameter's place in the optimizer is its key."""
    params = [Parameter(make_params([(4096,)], device, BF16)[0].detach().clone()) for _ in range(2)]
    optimizer = optim.AdamW(params, lr=1e-4, master="stochastic")
    (grad,) = gradients(params[:1], 1)[0]
    train(optimizer, params, [[grad, grad]])
    assert not torch.equal(*params)
    assert not same_params(run(3, device), run(3, device, ids=1))


def test_seed_per_group_and_through_a_checkpoint(device: str) -> None:
    params = make_params([(64, 64)], device, BF16)
    optimizer = optim.AdamW([{"params": params, "seed": 9}], lr=1e-4, master="stochastic")
    steps = gradients(params, 4)
    train(optimizer, params, steps[:2])
    again = [Parameter(p.detach().clone()) for p in params]
    other = optim.AdamW(again, master="stochastic", seed=1)
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["seed"] == 9
    train(optimizer, params, steps[2:])
    train(other, again, steps[2:])
    assert same_params(params, again)


def test_rounding_is_unbiased(device: str) -> None:
    """Updates of 1/50 ulp, 400 of them: lost to nearest; kept on average when rounded stochastically.

    Each step moves by an ulp (2^-8, from 1 down) with probability p = 0.02: over 16384 elements the mean of
    the way is 400 p ulp with a standard deviation of sqrt(400 p (1 - p) / 16384) ulp. Six are allowed.
    """
    count, steps, chance = 16384, 400, 0.02
    ulp = 2.0**-8
    way = {}
    for master in ("native", "stochastic"):
        param = Parameter(torch.full((count,), 0.9, device=device, dtype=BF16))
        start = float(param.detach()[0])
        optimizer = optim.SGD([param], lr=1.0, master=master)
        for _ in range(steps):
            param.grad = torch.full_like(param, chance * ulp)
            optimizer.step()
        way[master] = (start - param.detach().double().mean()) / ulp
        if master == "stochastic":
            assert float(param.detach().amin()) > 0.5  # the ulp is the same all the way
    # The gradient itself is a bf16 number: the chance is what it says.
    chance = float(torch.tensor(chance * ulp, dtype=BF16)) / ulp
    deviation = (steps * chance * (1 - chance) / count) ** 0.5
    assert way["native"] == 0
    assert abs(float(way["stochastic"]) - steps * chance) < 6 * deviation


def test_stochastic_stays_between_neighbours(device: str) -> None:
    """Never further from the fp32 value than one ulp, and exact where that is a bf16 number."""
    params, wide = make_params([(4096,)], device, BF16), make_params([(4096,)], device)
    wide[0].data.copy_(params[0].detach())
    (grads,) = gradients(params, 1)
    grads[0][::2] = 0.0
    grads = [grads[0].bfloat16().float()]
    train(optim.AdamW(params, lr=1e-2, weight_decay=0.0, master="stochastic"), params, [grads])
    train(optim.AdamW(wide, lr=1e-2, weight_decay=0.0), wide, [grads])
    narrow, exact = params[0].detach().float().cpu(), wide[0].detach().cpu()
    assert torch.equal(narrow[::2], exact[::2])
    assert bool(((narrow - exact).abs() <= exact.abs() * 2.0**-7).all())
    up, down = (narrow > exact)[1::2].float().mean(), (narrow < exact)[1::2].float().mean()
    assert float(up) > 0.4
    assert float(down) > 0.4


# --- Masters --------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", ["AdamW", "SGD", "Lion"])
def test_a_32_bit_master_is_the_fp32_run(name: str, state: str, device: str) -> None:
    """In bits: the masters are the weights of an fp32 run, the parameters those weights rounded."""
    params = make_params(device=device, dtype=BF16)
    wide = [Parameter(p.detach().float()) for p in params]
    options: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.1, "state": state}
    if name == "SGD":
        options["momentum"] = 0.9
    narrow = getattr(optim, name)(params, master=32, **options)
    full = getattr(optim, name)(wide, **options)
    for grads in gradients(params, 10):
        same = [g.bfloat16().float() for g in grads]
        train(narrow, params, [same])
        train(full, wide, [same])
        masters = narrow.master_parameters()
        for p, w in zip(params, wide, strict=True):
            assert masters[p].dtype == torch.float32
            assert torch.equal(masters[p], w.detach().cpu())
            assert torch.equal(p.detach().cpu().view(torch.int16), rounded(w).view(torch.int16))


def test_a_32_bit_master_follows_torch(device: str) -> None:
    """torch's AdamW on fp32 weights, within rounding; the bf16 weights alone would drift away."""
    params = make_params(device=device, dtype=BF16)
    start = [p.detach().float().cpu() for p in params]
    beside = Beside("adamw", [Parameter(p.clone()) for p in start], lr=1e-4, weight_decay=0.1)
    optimizer = optim.AdamW(params, lr=1e-4, weight_decay=0.1, master=32)
    for grads in gradients(params, 20):
        same = [g.bfloat16().float() for g in grads]
        train(optimizer, params, [same])
        beside.step(same)  # ours in fp32 is within the bound of torch's
        masters = optimizer.master_parameters()
        assert all(torch.equal(masters[p], q.detach()) for p, q in zip(params, beside.params, strict=True))


def test_a_24_bit_master(device: str) -> None:
    """Fifteen bits behind the point: each step within half of the last (2^-16 of the value) of fp32's."""
    params = make_params(device=device, dtype=BF16)
    optimizer = optim.SGD(params, lr=1e-3, master=24)
    exact = [p.detach().float().cpu() for p in params]
    for grads in gradients(params, 10):
        same = [g.bfloat16().float() for g in grads]
        train(optimizer, params, [same])
        masters = optimizer.master_parameters()
        for index, (p, grad) in enumerate(zip(params, same, strict=True)):
            wanted = exact[index] - 1e-3 * grad
            assert bool(((masters[p] - wanted).abs() <= wanted.abs() * (2.0**-16 + 2.0**-22)).all())
            assert not torch.equal(masters[p], p.detach().float().cpu())
            assert torch.equal(p.detach().cpu(), rounded(masters[p]))
            assert not bool((masters[p].view(torch.int32) & 0xFF).any())
            exact[index] = masters[p]


@pytest.mark.parametrize("master", ["native", "stochastic", 24, 32])
def test_small_updates_are_kept_but_not_by_bf16_alone(master: Any, device: str) -> None:
    (param,) = make_params([(1000,)], device, BF16)
    param.data.abs_().add_(1.0)
    before = param.detach().float()
    optimizer = optim.SGD([param], lr=1.0, master=master)
    for _ in range(200):
        param.grad = torch.full_like(param, 2.0**-13)
        optimizer.step()
    moved = (before - param.detach().float()).mean()
    assert float(moved) == (0.0 if master == "native" else pytest.approx(200 * 2.0**-13, rel=0.2))


def _masked(param: Tensor) -> None:
    param.mul_(torch.arange(param.numel(), device=param.device).view_as(param) % 3 != 0)


OUTSIDE: dict[str, Callable[[Tensor], Any]] = {
    "zero_": Tensor.zero_,
    "init.zeros_": torch.nn.init.zeros_,
    "clamp_": lambda param: param.clamp_(min=0),
    "relu_": lambda param: param.relu_().neg_(),  # zeros of both signs
    "a mask": _masked,
    "neg_": Tensor.neg_,
    "copy_": lambda param: param.copy_(torch.linspace(-3, 3, param.numel()).view_as(param)),
    "tiny": lambda param: param.mul_(1e-38).mul_(1e-2),  # below bf16's normal numbers
}


@pytest.mark.parametrize("master", [24, 32])
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_weight_from_outside_wins(name: str, master: int, device: str) -> None:
    """Over the residual of the weight that was there before: to less than one bf16 step, and never to NaN."""
    params = make_params(device=device, dtype=BF16)
    optimizer = optim.AdamW(params, lr=1e-3, weight_decay=0.0, master=master)
    train(optimizer, params, gradients(params, 3))
    residuals = torch.cat([optimizer.state[p]["master"].flatten() for p in params])
    assert bool((residuals < 0).any())
    with torch.no_grad():
        for p in params:
            OUTSIDE[name](p)
    written = [p.detach().clone() for p in params]
    places = [
        (torch.nextafter(w.abs(), torch.full_like(w, torch.inf)) - w.abs()).float().cpu() for w in written
    ]
    for p, w, step in zip(params, written, places, strict=True):
        wide, found = w.float().cpu(), optimizer.master_parameters()[p]
        assert bool(((found - wide).abs() < step).all())
        assert bool((found * wide >= 0).all())  # the sign is the weight's
    # A step that changes nothing keeps the weight (the sign of a zero may go).
    optimizer.param_groups[0]["lr"] = 0.0
    train(optimizer, params, [[torch.zeros(p.shape) for p in params]])
    assert all(torch.equal(p, w) for p, w in zip(params, written, strict=True))
    # One that does is that of a master without residual, to less than that place of bf16.
    optimizer.param_groups[0]["lr"] = 1e-3
    fresh = [Parameter(w.clone()) for w in written]
    other = optim.AdamW(fresh, lr=1e-3, weight_decay=0.0, master=master)
    saved = optimizer.state_dict()
    saved["state"] = {i: {**e, "master": torch.zeros_like(e["master"])} for i, e in saved["state"].items()}
    other.load_state_dict(saved)
    steps = gradients(params, 1, seed=7)
    train(optimizer, params, steps)
    train(other, fresh, steps)
    mine, its = optimizer.master_parameters(), other.master_parameters()
    for p, q, step in zip(params, fresh, places, strict=True):
        assert bool(((mine[p] - its[q]).abs() <= step + 2.0**-16 * its[q].abs()).all())  # and rounding


@pytest.mark.parametrize("master", [24, 32])
def test_infinite_weights_from_outside_stay_seen(master: int, device: str) -> None:
    """Beside an old residual they are no number that training could go on with in silence."""
    (param,) = make_params([(64,)], device, BF16)
    optimizer = optim.SGD([param], lr=1e-3, master=master)
    train(optimizer, [param], gradients([param], 3))
    with torch.no_grad():
        param[:32] = torch.inf
    train(optimizer, [param], gradients([param], 1))
    assert not bool((param[:32].abs() < 3e38).any())
    assert bool(torch.isfinite(param[32:]).all())


def test_master_parameters_of_what_has_none(device: str) -> None:
    narrow, wide = make_params([(5,)], device, BF16)[0], make_params([(6,)], device)[0]
    optimizer = optim.AdamW([narrow, wide], master=32)
    assert optimizer.master_parameters() == {}
    train(optimizer, [narrow, wide], gradients([narrow, wide], 1))
    assert [p is narrow for p in optimizer.master_parameters()] == [True]


@pytest.mark.parametrize("master", ["stochastic", 24, 32])
def test_masters_of_fp16_are_refused(master: Any, device: str) -> None:
    params = make_params([(5,)], device, torch.float16)
    with pytest.raises(ValueError, match=r"parameter 0 of group 0: it is torch.float16, and master="):
        optim.AdamW(params, master=master)
    model = torch.nn.Linear(3, 4).to(device=device, dtype=BF16)
    optimizer = optim.AdamW(model.named_parameters(), master=master)
    model.half()
    set_grads(list(model.parameters()), [torch.ones(4, 3), torch.ones(4)])
    with pytest.raises(ValueError, match=r"parameter 'weight': it is torch.float16"):
        optimizer.step()
    assert len(optimizer.state) == 0
