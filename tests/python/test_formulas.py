"""RMSprop and Adagrad against torch.optim, within the bound that rounding.py derives; AdEMAMix, LAMB and
LARS, which torch does not have, against their formulas in double; all of them against bitsandbytes.

A reference in double starts each step from the parameters and moments that ours has before it, so that a
bound is that of one step: a few roundings of each term. What is wrong in small ways must exceed it.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from typing import Any

import numpy as np
import pytest
import torch
from models import gradients as small_gradients
from models import make_params, set_grads, train
from octavo import optim
from octavo._describe import algorithms
from peers import need
from rounding import Bound, Doubles, Hyper, U, doubles, ratio
from test_torch_parity import STEPS, gradients, initial
from torch.nn import Parameter

# --- torch has it ---------------------------------------------------------------------------------

RMSPROP = {
    "plain": Hyper(lr=1e-2, decoupled=False),
    "l2": Hyper(lr=1e-2, alpha=0.9, eps=1e-6, weight_decay=1e-2, decoupled=False),
    "momentum": Hyper(lr=1e-3, momentum=0.9, decoupled=False),
    "centered": Hyper(lr=1e-3, alpha=0.95, centered=True, eps=1e-6, decoupled=False),
    "all": Hyper(
        lr=1e-3, momentum=0.5, centered=True, eps=1e-4, weight_decay=1e-3, maximize=True, decoupled=False
    ),
}
ADAGRAD = {
    "plain": Hyper(lr=1e-2, eps=1e-10, decoupled=False),
    "decay": Hyper(lr=5e-2, eps=1e-6, lr_decay=1e-2, weight_decay=1e-2, decoupled=False),
    "initial": Hyper(lr=1e-2, eps=1e-10, initial_accumulator_value=0.1, maximize=True, decoupled=False),
}
STATES = {"RMSprop": ("square_avg", "momentum_buffer", "grad_avg"), "Adagrad": ("sum",)}
OPTIONS = {
    "RMSprop": ("alpha", "momentum", "centered"),
    "Adagrad": ("lr_decay", "initial_accumulator_value"),
}


def options_of(title: str, hyper: Hyper) -> dict[str, Any]:
    names = (*OPTIONS[title], "lr", "eps", "weight_decay", "maximize")
    return {name: getattr(hyper, name) for name in names}


def beside_torch(title: str, hyper: Hyper, used: Hyper | None = None, steps: int = STEPS) -> float:
    """The largest difference of a parameter or moment from torch's, as a fraction of the bound."""
    theirs, ours = ([Parameter(p) for p in initial(7)] for _ in range(2))
    reference = getattr(torch.optim, title)(theirs, **options_of(title, hyper), foreach=False)
    optimizer = getattr(optim, title)(ours, **options_of(title, used or hyper))
    bounds = [Bound(hyper) for _ in theirs]

    def tensors(param: Parameter) -> tuple[Doubles, ...]:
        entry = reference.state[param]
        found = [entry.get(name) for name in STATES[title]]
        return tuple(doubles(torch.zeros_like(param) if t is None else t.detach()) for t in [param, *found])

    worst = 0.0
    for step in range(1, steps + 1):
        grads = gradients(7)[step - 1]
        set_grads(theirs, grads)
        set_grads(ours, grads)
        before = [tensors(p) for p in theirs]
        reference.step()
        optimizer.step()
        for mine, param, bound, was, grad in zip(ours, theirs, bounds, before, grads, strict=True):
            now = tensors(param)
            getattr(bound, title.lower())(step, doubles(grad), was, now)
            worst = max(worst, ratio(mine.detach(), now[0], bound.param))
            for slot, name in enumerate(STATES[title]):
                if name in optimizer.state[mine]:
                    found = optimizer.state[mine][name]
                    worst = max(worst, ratio(found, now[1 + slot], bound.moments[slot]))
    return worst


@pytest.mark.parametrize("name", RMSPROP)
def test_rmsprop(name: str) -> None:
    assert beside_torch("RMSprop", RMSPROP[name]) <= 1.0


@pytest.mark.parametrize("name", ADAGRAD)
def test_adagrad(name: str) -> None:
    assert beside_torch("Adagrad", ADAGRAD[name]) <= 1.0


@pytest.mark.parametrize(
    ("title", "name", "change"),
    [
        ("RMSprop", "plain", {"alpha": 0.99 + 1e-5}),
        ("RMSprop", "plain", {"lr": 1e-2 * (1 + 1e-5)}),
        ("RMSprop", "l2", {"eps": 1.001e-6}),
        ("RMSprop", "l2", {"weight_decay": 1.001e-2}),
        ("RMSprop", "momentum", {"momentum": 0.9 + 1e-5}),
        ("RMSprop", "centered", {"centered": False}),
        ("Adagrad", "plain", {"lr": 1e-2 * (1 + 1e-5)}),
        ("Adagrad", "decay", {"lr_decay": 1.001e-2}),
        ("Adagrad", "initial", {"initial_accumulator_value": 0.10001}),
    ],
)
def test_the_bound_notices_a_wrong_constant(title: str, name: str, change: dict[str, Any]) -> None:
    hyper = (RMSPROP if title == "RMSprop" else ADAGRAD)[name]
    assert beside_torch(title, hyper, dataclasses.replace(hyper, **change), steps=20) > 1.0


# --- In double ------------------------------------------------------------------------------------

# A step of a formula: new parameter, new moments by name, and what their errors are measured in.
Step = tuple[Doubles, dict[str, Doubles], dict[str, Doubles]]


def averaged(old: Doubles, beta: float, new: Doubles, size: Any = None) -> tuple[Doubles, Doubles]:
    """A moving average, and the size of its terms; `size` is that of what is new."""
    size = abs(new) if size is None else size
    return beta * old + (1 - beta) * new, abs(beta * old) + (1 - beta) * size


def ademamix(o: dict[str, Any], t: int, g: Doubles, p: Doubles, s: dict[str, Doubles]) -> Step:
    b1, b2, b3 = o["betas"]
    alpha, wd, lr = o["alpha"], o["weight_decay"], o["lr"]
    if o["t_alpha"]:
        alpha = min(t * alpha / o["t_alpha"], alpha)
    if o["t_beta3"]:
        x, l1, l3 = t / o["t_beta3"], math.log(b1), math.log(b3)
        b3 = min(math.exp(l1 * l3 / ((1 - x) * l3 + x * l1)), b3) if x < 1 else b3
    m, dm = averaged(s["exp_avg"], b1, g)
    v, dv = averaged(s["exp_avg_sq"], b2, g * g)
    slow, dslow = averaged(s["exp_avg_slow"], b3, g)
    d = np.sqrt(v / (1 - b2**t)) + o["eps"]
    update = (m / (1 - b1**t) + alpha * slow) / d
    terms = (dm / (1 - b1**t) + alpha * dslow) / d + abs(update)
    new = p - lr * wd * p - lr * update
    return new, {"exp_avg": m, "exp_avg_sq": v, "exp_avg_slow": slow}, {
        "exp_avg": dm, "exp_avg_sq": dv, "exp_avg_slow": dslow, "param": abs(p) + lr * terms
    }  # fmt: skip


def norm(x: Doubles) -> float:
    return float(np.sqrt(np.sum(x * x)))


def clipped(p: Doubles, update: Doubles, most: float) -> float:
    """bitsandbytes': an update is at most max_unorm times as long as the weights."""
    if most <= 0 or norm(update) <= most * norm(p):
        return 1.0
    return most * norm(p) / norm(update)


def trusted(weight: float, update: float) -> float:
    return weight / update if weight > 0 and update > 0 else 1.0


def lamb(o: dict[str, Any], t: int, g: Doubles, p: Doubles, s: dict[str, Doubles]) -> Step:
    b1, b2 = o["betas"]
    wd, lr, size = o["weight_decay"], o["lr"], abs(g)
    if not o["adam_w_mode"]:
        g, size, wd = g + wd * p, abs(g) + abs(wd * p), 0.0
    m, dm = averaged(s["exp_avg"], b1, g, size)
    v, dv = averaged(s["exp_avg_sq"], b2, g * g, size * size)
    c1, c2 = (1 - b1**t, 1 - b2**t) if o["bias_correction"] else (1.0, 1.0)
    d = np.sqrt(v / c2) + o["eps"]
    update, terms = m / c1 / d, dm / c1 / d
    if o["trust_ratio"]:
        update, terms = update + wd * p, terms + abs(wd * p)
        scale = trusted(norm(p), norm(update))
        new = p - lr * scale * update
    else:
        scale = clipped(p, update, o["max_unorm"])
        new = p - lr * wd * p - lr * scale * update
    # The error of v in the update: its root's, over the divisor.
    root = np.divide(dv, np.sqrt(v * c2), out=np.zeros_like(v), where=v > 0)
    size = abs(p) + lr * scale * (terms + abs(update) * (1 + root / d))
    return new, {"exp_avg": m, "exp_avg_sq": v}, {"exp_avg": dm, "exp_avg_sq": dv, "param": size}


def lars(o: dict[str, Any], t: int, g: Doubles, p: Doubles, s: dict[str, Doubles]) -> Step:
    mu, damp, wd, lr = o["momentum"], 1 - o["dampening"], o["weight_decay"], o["lr"]
    scale, size = 1.0, abs(g) + abs(wd * p)
    if o["trust_ratio"]:
        whole = norm(g) + wd * norm(p)
        local = o["trust_coefficient"] * trusted(norm(p), whole) if norm(p) > 0 and norm(g) > 0 else 1.0
        g, size = local * (g + wd * p), local * size
    else:
        g = g + wd * p
    b = g if t == 1 else mu * s["momentum_buffer"] + damp * g
    size = size + abs(mu * s["momentum_buffer"])
    update = g + mu * b if o["nesterov"] else b
    if not o["trust_ratio"]:
        scale = clipped(p, update, o["max_unorm"])
    new = p - lr * scale * update
    return (
        new,
        {"momentum_buffer": b},
        {"momentum_buffer": size, "param": abs(p) + lr * scale * size * (1 + mu)},
    )


FORMULAS = {"AdEMAMix": ademamix, "LAMB": lamb, "LARS": lars}
ROUNDINGS = 8  # of each term, at most; with those of the constants


def beside_double(title: str, options: dict[str, Any], used: dict[str, Any] | None = None) -> float:
    """The largest error of a parameter or moment over 30 steps, as a fraction of ROUNDINGS of its terms."""
    params = [Parameter(p) for p in initial(8)]
    optimizer = getattr(optim, title)(params, **(used if used is not None else options))
    group = {**getattr(optim, title)(params, **options).param_groups[0]}
    worst = 0.0
    for step in range(1, 31):
        set_grads(params, gradients(8)[step - 1])
        names = algorithms()[optimizer.algorithm].all_slots
        was = [
            (
                doubles(p.detach()),
                {n: doubles(optimizer.state[p].get(n, torch.zeros_like(p)).detach()) for n in names},
            )
            for p in params
        ]
        optimizer.step()
        for param, (p, state) in zip(params, was, strict=True):
            assert param.grad is not None
            new, moments, sizes = FORMULAS[title](group, step, doubles(param.grad), p, state)
            worst = max(worst, ratio(param.detach(), new, ROUNDINGS * U * sizes["param"]))
            for name, values in moments.items():
                found = optimizer.state[param][name]
                worst = max(worst, ratio(found, values, ROUNDINGS * U * sizes[name]))
    return worst


IN_DOUBLE: list[tuple[str, dict[str, Any]]] = [
    ("AdEMAMix", {}),
    ("AdEMAMix", {"t_alpha": 20, "t_beta3": 20, "weight_decay": 0.1}),
    ("AdEMAMix", {"betas": (0.8, 0.95, 0.999), "alpha": 2.0, "eps": 1e-4, "t_beta3": 100}),
    ("LAMB", {}),
    ("LAMB", {"max_unorm": 0.01, "weight_decay": 0.1}),
    ("LAMB", {"max_unorm": 0.0, "bias_correction": False, "adam_w_mode": False, "weight_decay": 0.1}),
    ("LAMB", {"trust_ratio": True, "weight_decay": 0.1}),
    ("LARS", {}),
    ("LARS", {"max_unorm": 1e-3, "momentum": 0.5, "dampening": 0.1, "weight_decay": 0.01}),
    ("LARS", {"max_unorm": 0.0, "nesterov": True}),
    ("LARS", {"trust_ratio": True, "weight_decay": 1e-2, "trust_coefficient": 0.01}),
]


@pytest.mark.parametrize(("title", "options"), IN_DOUBLE, ids=str)
def test_the_formula_in_double(title: str, options: dict[str, Any]) -> None:
    assert beside_double(title, options) <= 1.0


@pytest.mark.parametrize(
    ("title", "options", "change"),
    [
        ("AdEMAMix", {}, {"alpha": 5.001}),
        ("AdEMAMix", {"t_alpha": 20}, {"t_alpha": 21}),
        ("AdEMAMix", {"t_beta3": 20}, {"t_beta3": 21}),
        ("LAMB", {"max_unorm": 0.01}, {"max_unorm": 0.010001}),
        ("LAMB", {}, {"bias_correction": False}),
        ("LAMB", {"weight_decay": 0.1}, {"adam_w_mode": False}),
        ("LAMB", {"weight_decay": 0.1}, {"trust_ratio": True}),
        ("LARS", {"max_unorm": 1e-3}, {"max_unorm": 1.0001e-3}),
        ("LARS", {}, {"trust_ratio": True}),
        ("LARS", {"trust_ratio": True}, {"trust_coefficient": 1.0001e-3}),
    ],
    ids=str,
)
def test_the_reference_notices_a_wrong_option(title: str, options: Any, change: dict[str, Any]) -> None:
    assert beside_double(title, options, {**options, **change}) > 1.0


# --- bitsandbytes, 32 bits ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("title", "options"),
    [
        # Where LAMB clips, the CPU kernels measure without bias correction, unlike the CUDA ones.
        ("LAMB", {"max_unorm": 0.0}),
        ("LAMB", {"max_unorm": 10.0, "weight_decay": 0.1}),
        ("LARS", {"lr": 0.1, "momentum": 0.9}),
        ("LARS", {"lr": 0.1, "momentum": 0.9, "max_unorm": 1e-3, "weight_decay": 0.01}),
        ("AdEMAMix", {"t_alpha": 5, "t_beta3": 5}),
        ("RMSprop", {"weight_decay": 0.01}),
        ("Adagrad", {}),
    ],
    ids=str,
)
def test_ten_steps_of_bitsandbytes(title: str, options: dict[str, Any]) -> None:
    """Its CPU kernels compute the same in fp32, in another order: ten steps stay within 1e-5."""
    need("bitsandbytes")
    ours, theirs = make_params([(40, 130)]), make_params([(40, 130)])
    steps = small_gradients(ours, 10)
    train(getattr(optim, title)(ours, **options), ours, steps)
    train(getattr(importlib.import_module("bitsandbytes.optim"), title)(theirs, **options), theirs, steps)
    change = (theirs[0] - make_params([(40, 130)])[0]).abs().max()
    assert change > 1e-3
    assert (ours[0] - theirs[0]).abs().max() <= 1e-5 * max(float(change), 1.0)
