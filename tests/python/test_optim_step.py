"""Steps of octavo.optim: fp32 states follow torch.optim within rounding, Lion its formula, and low-bit states
the fp32 ones within the error of their format.
"""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import pytest
import torch
from models import (
    BLOCKS,
    MOMENTS,
    OURS,
    STATES,
    Beside,
    gradients,
    make_params,
    moments_of,
    same_params,
    set_grads,
    train,
)
from octavo import _codec, optim
from torch import Tensor

STEPS = 30
ADAM = {
    "plain": {},
    "decay": {"lr": 3e-3, "weight_decay": 0.1, "eps": 1e-6},
    "amsgrad": {"lr": 2e-3, "betas": (0.8, 0.99), "weight_decay": 1e-2, "amsgrad": True},
    "maximize": {"lr": 1e-2, "weight_decay": 5e-2, "maximize": True},
    "amsgrad-maximize": {"amsgrad": True, "maximize": True, "betas": (0.3, 0.7)},
    "no-momentum": {"betas": (0.0, 0.9), "eps": 1e-6},
    "zero-lr": {"lr": 0.0, "weight_decay": 0.1},
}
SGD = {
    "plain": {"lr": 1e-2},
    "decay": {"lr": 0.1, "weight_decay": 1e-2},
    "momentum": {"lr": 1e-2, "momentum": 0.9},
    "dampening": {"lr": 1e-2, "momentum": 0.9, "dampening": 0.3, "weight_decay": 1e-3},
    "nesterov": {"lr": 3e-3, "momentum": 0.95, "nesterov": True, "weight_decay": 1e-2},
    "maximize": {"lr": 1e-2, "momentum": 0.5, "maximize": True},
}


@pytest.mark.parametrize("name", ADAM)
@pytest.mark.parametrize("algorithm", ["adam", "adamw"])
def test_adam_follows_torch(algorithm: str, name: str, device: str) -> None:
    beside = Beside(algorithm, make_params(device=device), **ADAM[name])
    for grads in gradients(beside.params, STEPS):
        beside.step(grads)
    assert beside.steps_taken() == [(STEPS, STEPS)] * len(beside.params)


@pytest.mark.parametrize("name", SGD)
def test_sgd_follows_torch(name: str, device: str) -> None:
    beside = Beside("sgd", make_params(device=device), **SGD[name])
    for grads in gradients(beside.params, STEPS):
        beside.step(grads)
    if "momentum" not in SGD[name]:
        assert beside.ours.state_bytes() == 0


def test_a_wrong_formula_is_seen(device: str) -> None:
    """The two tests above would fail for an optimizer whose decay is a thousandth too large."""
    beside = Beside("adamw", make_params(device=device), weight_decay=0.1, lr=1e-2)
    beside.ours.param_groups[0]["weight_decay"] = 0.1 + 1e-4
    with pytest.raises(AssertionError, match="as far from torch's"):  # noqa: PT012
        for grads in gradients(beside.params, STEPS):
            beside.step(grads)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("algorithm", ["adamw", "sgd"])
def test_narrow_parameters_are_the_rounded_step(algorithm: str, dtype: torch.dtype, device: str) -> None:
    """Moments and the new value are computed in fp32 and rounded once: as a float step, then a cast."""
    options: dict[str, Any] = {"momentum": 0.9} if algorithm == "sgd" else {}
    params = make_params(device=device, dtype=dtype)
    wide = [torch.nn.Parameter(p.detach().float()) for p in params]
    ours = OURS[algorithm](params, lr=1e-2, weight_decay=0.1, **options)
    theirs = OURS[algorithm](wide, lr=1e-2, weight_decay=0.1, **options)
    for grads in gradients(params, 5):
        narrow = [g.to(dtype).float() for g in grads]
        train(ours, params, [grads])
        train(theirs, wide, [narrow])
        for p, w in zip(params, wide, strict=True):
            w.data.copy_(w.data.to(dtype))
            assert torch.equal(p.float(), w)


def lion(param: Tensor, momentum: Tensor, grad: Tensor, lr: float, betas: Any, decay: float) -> None:
    """Chen et al. 2023, algorithm 2, in double."""
    update = torch.sign(betas[0] * momentum + (1 - betas[0]) * grad)
    param.mul_(1 - lr * decay).sub_(lr * update)
    momentum.mul_(betas[1]).add_(grad, alpha=1 - betas[1])


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lion_follows_its_paper(decay: float, maximize: bool, device: str) -> None:
    params = make_params(device=device)
    reference = [p.detach().cpu().double() for p in params]
    momenta = [torch.zeros_like(p) for p in reference]
    allowed = [torch.zeros_like(p) for p in reference]
    optimizer = optim.Lion(params, lr=1e-3, betas=(0.9, 0.99), weight_decay=decay, maximize=maximize)
    for grads in gradients(params, STEPS):
        train(optimizer, params, [grads])
        for i, (wide, grad) in enumerate(zip(reference, grads, strict=True)):
            before = wide.abs()
            lion(wide, momenta[i], -grad.double() if maximize else grad.double(), 1e-3, (0.9, 0.99), decay)
            # Rounded: 1 - lr * decay and its product with the parameter, lr, and the new parameter.
            allowed[i] += 2.0**-24 * (2 * before + 1e-3 + wide.abs())
            assert bool(((params[i].detach().cpu().double() - wide).abs() <= allowed[i]).all())


# --- Low-bit states -------------------------------------------------------------------------------

# Half the widest gap between neighbouring values of a format next to the largest one, as a fraction of the
# block's maximum (docs/formats.md): first moment, second moment. bf16 is relative to the value itself, to
# nearest and stochastic.
WIDEST = {
    "8bit": (0.9 / 64 / 2, 0.9 / 128 / 2),
    "4bit": (0.1125, 1 / 16),  # a negative maximum has .8875; a zero v has 1/16
    "fp8": (16 / 448, 16 / 448),
    "fp8-e5m2": (4096 / 57344, 4096 / 57344),
    "bf16": (2.0**-8, 2.0**-7),
}


def block_maxima(values: Tensor, block: int) -> Tensor:
    """The largest magnitude of each element's block."""
    flat = values.abs().view(-1)
    padded = torch.nn.functional.pad(flat, (0, -flat.numel() % block)).view(-1, block)
    return padded.amax(1, keepdim=True).expand_as(padded).reshape(-1)[: flat.numel()].view(values.shape)


STOCHASTIC = ("fp4", "fp3")


def assert_neighbours(kind: str, state: str, values: Tensor, codes: Tensor, scales: Tensor) -> None:
    """Every code is one of the two values of the map that enclose the moment, in units of its scale."""
    count, bits = values.numel(), _codec.code_bits(kind, state)
    scale = scales.repeat_interleave(BLOCKS[state])[:count]
    stored = _codec.decode(kind, state, codes, scales, values.shape).view(-1) / scale
    every = torch.arange(1 << bits, dtype=torch.uint8)
    packed = _codec.packed(every.repeat_interleave(8), bits)  # each code fills complete bytes
    grid = _codec.decode(kind, state, packed, torch.ones(1), (8 << bits,), 128).unique()
    wanted = (values.view(-1) / scale).clamp(grid[0], grid[-1])
    above = torch.searchsorted(grid, wanted * (1 - 1e-6 * wanted.sign())).clamp(max=len(grid) - 1)
    below = (torch.searchsorted(grid, wanted * (1 + 1e-6 * wanted.sign()), right=True) - 1).clamp(min=0)
    assert (
        (stored >= grid[below] * (1 - 1e-5 * grid[below].sign()))
        & (stored <= grid[above] * (1 + 1e-5 * grid[above].sign()))
    ).all()
    assert stored.unique().numel() > 2


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("algorithm", ["adam", "adamw", "sgd", "lion"])
def test_the_first_step_is_the_fp32_one(algorithm: str, state: str, device: str) -> None:
    """The update uses the moments before they are stored, and what is stored is their encoding."""
    options: dict[str, Any] = {"momentum": 0.9, "dampening": 0.1} if algorithm == "sgd" else {}
    low, full = make_params(device=device), make_params(device=device)
    ours = OURS[algorithm](low, state=state, weight_decay=0.1, **options)
    exact = OURS[algorithm](full, state="fp32", weight_decay=0.1, **options)
    grads = gradients(low, 1)
    train(ours, low, grads)
    train(exact, full, grads)
    assert same_params(low, full)
    for index, (p, q) in enumerate(zip(low, full, strict=True)):
        entry, wide = ours.state[p], exact.state[q]
        stored = state if p.numel() >= 4096 or state == "bf16" else "fp32"
        for name in (n for n in MOMENTS if n in wide):
            if stored == "bf16" and name == "exp_avg_sq":
                continue  # rounded stochastically: test_low_bit_states_stay_near
            kind = "second" if name.endswith("sq") else "first"
            codes, scales = _codec.encode(kind, stored, wide[name].cpu(), BLOCKS.get(stored, 0))
            mine = entry[name].cpu().contiguous().view(-1).view(torch.uint8)
            if stored in STOCHASTIC:
                assert_neighbours(kind, stored, wide[name].cpu(), mine, scales)
            else:
                assert torch.equal(mine, codes), (index, name)
            if stored in BLOCKS:
                assert torch.equal(entry[name + "_scale"].cpu(), scales), (index, name)


@pytest.mark.parametrize("state", WIDEST)
def test_low_bit_states_stay_near(state: str, device: str) -> None:
    """Errors of storing decay with the moment: D(m) = beta D(m) + the widest gap of the new block."""
    low, full = make_params(device=device), make_params(device=device)
    ours, exact = optim.AdamW(low, state=state), optim.AdamW(full)
    apart: dict[tuple[int, str], Tensor] = {}
    for grads in gradients(low, 12):
        train(ours, low, [grads])
        train(exact, full, [grads])
        for index, (mine, wide) in enumerate(zip(moments_of(ours), moments_of(exact), strict=True)):
            for slot, (name, beta) in enumerate((("exp_avg", 0.9), ("exp_avg_sq", 0.999))):
                block = BLOCKS.get(state, 0)
                if block and low[index].numel() < 4096:
                    assert torch.equal(mine[name], wide[name])
                    continue
                known = apart.get((index, name), torch.zeros_like(wide[name]))
                largest = wide[name].abs() + beta * known  # of the value that is stored now
                if block:
                    largest = block_maxima(largest, block)
                # One ulp for the sums and products, another for the scale.
                apart[index, name] = beta * known + largest * (WIDEST[state][slot] + 2.0**-22)
                difference = (mine[name] - wide[name]).abs()
                assert bool((difference <= apart[index, name]).all()), (index, name)
                assert bool((difference > 0).any())  # it is not the fp32 state that was looked at


# --- Counts of parameters, shapes at the edges -----------------------------------------------------


def test_scalars_and_empty_parameters(device: str) -> None:
    beside = Beside("adamw", make_params([(), (0,), (3, 0, 2), (1,), (5,)], device), weight_decay=0.1)
    for grads in gradients(beside.params, 5):
        beside.step(grads)
    assert [tuple(beside.ours.state[p]["exp_avg"].shape) for p in beside.params] == [
        (),
        (0,),
        (3, 0, 2),
        (1,),
        (5,),
    ]


@pytest.mark.parametrize("state", STATES)
def test_scalars_and_empty_parameters_in_every_format(state: str, device: str) -> None:
    low = make_params([(), (0,), (1,), (31,), (3, 11)], device)
    full = make_params([(), (0,), (1,), (31,), (3, 11)], device)
    ours = optim.AdamW(low, state=state, min_quantized_size=0)
    grads = gradients(low, 2)
    train(ours, low, grads[:1])
    train(optim.AdamW(full), full, grads[:1])
    assert same_params(low, full)
    train(ours, low, grads[1:])
    assert all(bool(torch.isfinite(p).all()) for p in low)


def test_nothing_to_do(device: str) -> None:
    params = make_params(device=device)
    optimizer = optim.AdamW8bit(params)
    before = [p.detach().clone() for p in params]
    assert optimizer.step() is None
    assert same_params(params, before)
    assert len(optimizer.state) == 0
    set_grads(params, [torch.zeros(p.shape) for p in params])
    optimizer.zero_grad()
    assert all(p.grad is None for p in params)


@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 1.0, "skip_nonfinite": True}], ids=["", "norm"])
def test_a_step_is_few_functions(options: dict[str, Any], device: str) -> None:
    """A step like the one before passes at most 10 functions of the package, and all are in optimizer.py but
    the engine's and the norm's.
    """
    params = make_params(device=device)
    optimizer = optim.AdamW8bit(params, **options)
    grads = gradients(params, 4)
    train(optimizer, params, grads[:3])
    set_grads(params, grads[3])
    called: list[tuple[str, str]] = []

    def note(frame: Any, event: str, _: Any) -> None:
        path = pathlib.Path(frame.f_code.co_filename)
        if event == "call" and "octavo" in path.parts:
            called.append((path.name, frame.f_code.co_name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        optimizer.step()
    finally:
        sys.setprofile(before)
    # A global hook of octavo.fp8 may follow the step.
    called = called[: called.index(("_engine.py", "step")) + 1]
    assert 3 < len(called) <= 10, called
    assert {file for file, _ in called} <= {"optimizer.py", "_engine.py", "device_buffers.py"}
    assert ("device_buffers.py", "compute_norm") in called or not options


def test_arguments_that_differ_from_the_step_before(device: str) -> None:
    """The arguments are filled in again when something has changed: which parameters have a gradient,
    clipping, a scaler's tensors, the number of threads.
    """
    params, plain = make_params(device=device), make_params(device=device)
    optimizer, other = optim.AdamW8bit(params, fused=True), optim.AdamW8bit(plain)
    threads = torch.get_num_threads()
    for turn, grads in enumerate(gradients(params, 12)):
        scale, clip, count = 4.0 if turn % 4 == 1 else 1.0, 0.1 if turn % 3 == 2 else None, 1 + turn % 2
        some = [None if turn == 7 and i == 1 else g for i, g in enumerate(grads)]
        for group in (*optimizer.param_groups, *other.param_groups):
            group["clip_grad_norm"] = clip
        if scale != 1.0:
            optimizer.grad_scale = torch.tensor(scale, device=device)  # type: ignore[attr-defined]
            optimizer.found_inf = torch.tensor(0.0, device=device)  # type: ignore[attr-defined]
        torch.set_num_threads(min(count, threads))
        try:
            train(optimizer, params, [[None if g is None else g * scale for g in some]])
        finally:
            torch.set_num_threads(threads)
        train(other, plain, [some])
        if scale != 1.0:
            del optimizer.grad_scale, optimizer.found_inf  # type: ignore[attr-defined]
        assert same_params(params, plain), turn
