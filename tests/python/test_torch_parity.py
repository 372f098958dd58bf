"""fp32 states against torch.optim: 100 steps, random gradients, every element within a bound that is derived.

rounding.py derives the bound: two ulp of the parameter per step, plus the moments' rounding errors weighted
with the update. A measured difference is reported as a fraction of it. Variants that are wrong in small
ways must exceed it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import octavo_abi as octavo
import pytest
import torch
from rounding import SECOND_ORDER, TINY, Bound, Hyper, doubles, ratio

STEPS = 100
SIZES = (1, 257, 10007)
ADAM_STATES = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")

ADAMW = {
    "adamw": Hyper(weight_decay=1e-2),
    "adamw-no-decay": Hyper(),
    "adamw-large-eps": Hyper(lr=3e-4, betas=(0.9, 0.95), eps=1e-4, weight_decay=0.1),
    "adamw-amsgrad": Hyper(lr=2e-3, betas=(0.8, 0.99), weight_decay=1e-2, amsgrad=True),
    "adamw-maximize": Hyper(lr=1e-2, weight_decay=5e-2, maximize=True),
    "adamw-no-momentum": Hyper(betas=(0.0, 0.9), eps=1e-6, weight_decay=1e-2),
    "adamw-low-beta1": Hyper(betas=(0.3, 0.7), weight_decay=1e-2),
}
ADAM = {
    "adam": Hyper(decoupled=False),
    "adam-l2": Hyper(lr=3e-3, eps=1e-6, weight_decay=1e-2, decoupled=False),
    "adam-l2-amsgrad-maximize": Hyper(weight_decay=0.1, decoupled=False, amsgrad=True, maximize=True),
}
SGD = {
    "sgd": Hyper(lr=1e-2, decoupled=False),
    "sgd-l2": Hyper(lr=0.1, weight_decay=1e-2, decoupled=False),
    "sgd-momentum": Hyper(lr=1e-2, momentum=0.9, decoupled=False),
    "sgd-dampening-l2": Hyper(lr=1e-2, momentum=0.9, dampening=0.3, weight_decay=1e-3, decoupled=False),
    "sgd-nesterov-l2": Hyper(lr=3e-3, momentum=0.95, nesterov=True, weight_decay=1e-2, decoupled=False),
    "sgd-maximize": Hyper(lr=1e-2, momentum=0.5, maximize=True, decoupled=False),
}
ADAM_CASES = ADAMW | ADAM


class Candidate(Protocol):
    """What is compared with torch."""

    def step(self, step: int) -> None: ...
    def tensors(self, index: int) -> list[Any]: ...


def initial(seed: int, sizes: tuple[int, ...] = SIZES) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [0.02 * torch.randn(size, generator=generator) for size in sizes]


@functools.cache
def gradients(seed: int) -> list[list[torch.Tensor]]:
    """Of every step: normal numbers, scaled by element (1e-4 to 10) in the same way at each step."""
    generator = torch.Generator().manual_seed(1000 + seed)
    scales = [10.0 ** (5 * torch.rand(size, generator=generator) - 4) for size in SIZES]
    steps = [
        [scale * torch.randn(scale.shape, generator=generator) for scale in scales] for _ in range(STEPS)
    ]
    for grad in (grad for grads in steps for grad in grads):
        assert bool(((grad == 0) | (grad.abs() > TINY)).all()), "a gradient that rounding.py does not cover"
    return steps


def fill_gradients(grads: list[torch.Tensor], seed: int, step: int) -> None:
    for grad, source in zip(grads, gradients(seed)[step - 1], strict=True):
        grad.copy_(source)


def torch_optimizer(params: Sequence[torch.Tensor], hyper: Hyper, algorithm: str) -> torch.optim.Optimizer:
    common: dict[str, Any] = {
        "lr": hyper.lr,
        "weight_decay": hyper.weight_decay,
        "maximize": hyper.maximize,
        "foreach": False,
        "fused": False,
    }
    if algorithm == "sgd":
        momentum: dict[str, Any] = {
            "momentum": hyper.momentum,
            "dampening": hyper.dampening,
            "nesterov": hyper.nesterov,
        }
        return torch.optim.SGD(params, **momentum, **common)
    kind = torch.optim.AdamW if hyper.decoupled else torch.optim.Adam
    return kind(params, betas=hyper.betas, eps=hyper.eps, amsgrad=hyper.amsgrad, **common)


def octavo_fields(hyper: Hyper) -> dict[str, float]:
    return {
        "lr": hyper.lr,
        "beta1": hyper.betas[0],
        "beta2": hyper.betas[1],
        "eps": hyper.eps,
        "weight_decay": hyper.weight_decay,
        "decay": 2 if hyper.decoupled else 1,
        "maximize": hyper.maximize,
        "momentum": hyper.momentum,
        "dampening": hyper.dampening,
        "nesterov": hyper.nesterov,
    }


class OctavoCandidate:
    def __init__(
        self, algorithm: str, params: list[torch.Tensor], grads: list[torch.Tensor], hyper: Hyper
    ) -> None:
        self.fields = octavo_fields(hyper)
        parameters = [octavo.Parameter(p, g) for p, g in zip(params, grads, strict=True)]
        self.group = octavo.Group(
            algorithm, parameters, amsgrad=hyper.amsgrad, momentum=algorithm != "sgd" or hyper.momentum != 0.0
        )

    def step(self, step: int) -> None:
        self.group.step(step, **self.fields)

    def tensors(self, index: int) -> list[Any]:
        parameter = self.group.parameters[index]
        return [parameter.param, *(parameter.moment(slot) for slot in range(len(parameter.codes)))]


def torch_tensors(optimizer: torch.optim.Optimizer, param: torch.Tensor, algorithm: str) -> list[Any]:
    """The parameter and its moments; zeros where torch has not made them yet, or has none."""
    state = optimizer.state[param]
    names = ("momentum_buffer",) if algorithm == "sgd" else ADAM_STATES
    moments = [state[name] if state.get(name) is not None else torch.zeros_like(param) for name in names]
    return [param.detach(), *moments]


def compare(
    algorithm: str,
    hyper: Hyper,
    make: Callable[[list[torch.Tensor], list[torch.Tensor]], Candidate],
    seed: int,
) -> dict[str, float]:
    """The largest difference from torch over all steps, elements and tensors, as a fraction of the bound."""
    params = [torch.nn.Parameter(p) for p in initial(seed)]
    grads = [torch.empty_like(p) for p in params]
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad
    optimizer = torch_optimizer(params, hyper, algorithm)
    candidate = make(initial(seed), grads)
    bounds = [Bound(hyper) for _ in params]
    worst = {"param": 0.0, "moment": 0.0}
    for step in range(1, STEPS + 1):
        fill_gradients(grads, seed, step)
        before = [tuple(map(doubles, torch_tensors(optimizer, p, algorithm))) for p in params]
        optimizer.step()
        candidate.step(step)
        for index, (param, bound) in enumerate(zip(params, bounds, strict=True)):
            reference = torch_tensors(optimizer, param, algorithm)
            advance = bound.sgd if algorithm == "sgd" else bound.adam
            advance(step, doubles(grads[index]), before[index], tuple(map(doubles, reference)))
            mine, *moments = candidate.tensors(index)
            worst["param"] = max(worst["param"], ratio(mine, reference[0], bound.param))
            for slot, moment in enumerate(moments):
                worst["moment"] = max(
                    worst["moment"], ratio(moment, reference[1 + slot], bound.moments[slot])
                )
    return worst


def compare_octavo(algorithm: str, hyper: Hyper, seed: int, used: Hyper | None = None) -> dict[str, float]:
    """`used` is what the library is given where that is not what torch is given."""
    return compare(
        algorithm, hyper, lambda params, grads: OctavoCandidate(algorithm, params, grads, used or hyper), seed
    )


def report(worst: dict[str, float]) -> str:
    return ", ".join(f"{what}s differ by {value:.3f} of the derived bound" for what, value in worst.items())


@pytest.mark.parametrize("name", ADAM_CASES)
def test_adam(name: str) -> None:
    hyper = ADAM_CASES[name]
    worst = compare_octavo("adamw" if hyper.decoupled else "adam", hyper, seed=1)
    assert max(worst.values()) <= 1.0, report(worst)


@pytest.mark.parametrize("name", SGD)
def test_sgd(name: str) -> None:
    worst = compare_octavo("sgd", SGD[name], seed=2)
    assert max(worst.values()) <= 1.0, report(worst)


@pytest.mark.parametrize(
    ("algorithm", "name", "change"),
    [
        ("adamw", "adamw", {"betas": (0.9, 0.999 - 1e-4)}),
        ("adamw", "adamw", {"betas": (0.9 + 1e-4, 0.999)}),
        ("adamw", "adamw", {"lr": 1e-3 * (1 + 1e-4)}),
        ("adamw", "adamw", {"weight_decay": 1.05e-2}),
        ("adamw", "adamw-large-eps", {"eps": 1.0001e-4}),
        ("adamw", "adamw-amsgrad", {"amsgrad": False}),
        ("adam", "adam-l2", {"weight_decay": 1.001e-2}),
        ("sgd", "sgd-momentum", {"momentum": 0.9 + 1e-5}),
        ("sgd", "sgd-dampening-l2", {"dampening": 0.3 + 1e-5}),
        ("sgd", "sgd-nesterov-l2", {"nesterov": False}),
        ("sgd", "sgd-l2", {"weight_decay": 1.001e-2}),
    ],
)
def test_the_bound_notices_a_wrong_constant(algorithm: str, name: str, change: dict[str, Any]) -> None:
    hyper = (ADAM_CASES | SGD)[name]
    worst = compare_octavo(algorithm, hyper, seed=3, used=dataclasses.replace(hyper, **change))
    assert worst["param"] > 1.0, f"{change}: {report(worst)}"


class TorchVariant:
    """AdamW once more, out of torch operations, with one thing wrong; "right" has nothing wrong."""

    def __init__(
        self, mistake: str, params: list[torch.Tensor], grads: list[torch.Tensor], hyper: Hyper
    ) -> None:
        self.mistake, self.params, self.grads, self.hyper = mistake, params, grads, hyper
        self.m = [torch.zeros_like(p) for p in params]
        self.v = [torch.zeros_like(p) for p in params]

    def step(self, step: int) -> None:
        h, wrong = self.hyper, self.mistake
        b1, b2 = h.betas
        w2 = 1.0 - (float(np.float32(b2)) if wrong == "one-minus-float-beta2" else b2)
        correction = 1.0 - b2 ** (step - (wrong == "late-correction"))
        for p, g, m, v in zip(self.params, self.grads, self.m, self.v, strict=True):
            if wrong != "decay-after":
                p.mul_(1.0 - h.lr * h.weight_decay)
            m.mul_(b1).add_(g, alpha=1.0 - b1)
            v.mul_(b2).addcmul_(g, g, value=w2)
            if wrong == "eps-inside":
                denominator = (v / correction + h.eps**2).sqrt()
            elif wrong == "eps-before-correction":
                denominator = (v.sqrt() + h.eps) / correction**0.5
            else:
                denominator = (v.sqrt() / max(correction, 1e-3) ** 0.5).add_(h.eps)
            p.addcdiv_(m, denominator, value=-h.lr / (1.0 - b1**step))
            if wrong == "decay-after":
                p.mul_(1.0 - h.lr * h.weight_decay)

    def tensors(self, index: int) -> list[Any]:
        return [self.params[index], self.m[index], self.v[index]]


VARIANT = Hyper(betas=(0.9, 0.999), eps=1e-6, weight_decay=0.1)
MISTAKES = ("eps-inside", "eps-before-correction", "decay-after", "late-correction", "one-minus-float-beta2")


@pytest.mark.parametrize("mistake", ["right", *MISTAKES])
def test_the_bound_notices_a_wrong_formula(mistake: str) -> None:
    worst = compare("adamw", VARIANT, lambda p, g: TorchVariant(mistake, p, g, VARIANT), seed=4)
    assert (max(worst.values()) <= 1.0) == (mistake == "right"), f"{mistake}: {report(worst)}"


def fused(a: Any, b: Any, c: Any) -> Any:
    """fma in float32: the product is exact in double, the sum is rounded to odd there, then to float32."""
    product, c = np.float64(a) * np.float64(b), np.float64(c)
    total = product + c
    back = total - product
    error = (product - (total - back)) + (c - back)
    even = (total.view(np.int64) & 1) == 0
    nudged = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & even, nudged, total).astype(np.float32)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("maximize", [False, True])
def test_lion_equals_a_float32_reference_in_bits(weight_decay: float, maximize: bool) -> None:
    """The sign makes any tolerance useless: the reference rounds where the library does. torch has none."""
    lr, b1, b2 = 1e-3, 0.9, 0.99
    params = initial(seed=5)
    grads = [torch.empty_like(p) for p in params]
    group = octavo.Group("lion", [octavo.Parameter(p, g) for p, g in zip(params, grads, strict=True)])
    expected = [p.numpy().copy() for p in params]
    momenta = [np.zeros_like(p) for p in expected]
    lr32, keep = np.float32(lr), np.float32(1.0 - float(np.float32(lr)) * weight_decay)
    for step in range(1, STEPS + 1):
        fill_gradients(grads, 5, step)
        group.step(step, lr=lr, beta1=b1, beta2=b2, weight_decay=weight_decay, maximize=maximize)
        for index, grad in enumerate(grads):
            g = grad.numpy() * np.float32(-1.0 if maximize else 1.0)
            m, p = momenta[index], expected[index]
            direction = np.sign(fused(np.float32(b1), m, np.float32(1.0 - b1) * g))
            momenta[index] = fused(np.float32(b2), m, np.float32(1.0 - b2) * g)
            expected[index] = fused(-lr32, direction, p * keep)
    for index, parameter in enumerate(group):
        np.testing.assert_array_equal(parameter.param.numpy(), expected[index])
        np.testing.assert_array_equal(parameter.moment(0), momenta[index])


@pytest.mark.parametrize("grad_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("param_dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ADAMW)
def test_half_parameters_are_the_fp32_step_rounded(
    name: str, param_dtype: torch.dtype, grad_dtype: torch.dtype
) -> None:
    """One step from given moments: torch's fp32 result plus or minus the bound, rounded, encloses ours.

    Rounding is monotone, so that is necessary and sufficient; nearly everywhere both ends are the same
    number.
    """
    hyper, size, step = ADAMW[name], 10007, 7
    generator = torch.Generator().manual_seed(6)
    stored = (0.02 * torch.randn(size, generator=generator)).to(param_dtype)
    grad = (1e-2 * torch.randn(size, generator=generator)).to(grad_dtype)
    moments = [1e-2 * torch.randn(size, generator=generator), 1e-4 * torch.rand(size, generator=generator)]
    moments = [*moments, 2 * moments[1]][: 3 if hyper.amsgrad else 2]

    reference = torch.nn.Parameter(stored.float())
    reference.grad = grad.float()
    optimizer = torch_optimizer([reference], hyper, "adamw")
    state = {name: moment.clone() for name, moment in zip(ADAM_STATES, moments, strict=False)}
    optimizer.state[reference] = {"step": torch.tensor(step - 1.0), **state}
    before = tuple(map(doubles, torch_tensors(optimizer, reference, "adamw")))
    optimizer.step()
    bound = Bound(hyper)
    after = tuple(map(doubles, torch_tensors(optimizer, reference, "adamw")))
    bound.adam(step, doubles(grad.float()), before, after)

    parameter = octavo.Parameter(stored.clone(), grad)
    group = octavo.Group("adamw", [parameter], amsgrad=hyper.amsgrad)
    for slot, moment in enumerate(moments):
        parameter.load(slot, moment, np.empty(0, np.float32))
    group.step(step, **octavo_fields(hyper))

    exact, margin = torch.from_numpy(after[0]), torch.from_numpy(SECOND_ORDER * bound.param)
    # float64 to half directly: through float32 it would round twice.
    low, high = ((exact + sign * margin).to(param_dtype) for sign in (-1, 1))
    inside = (low.double() <= parameter.param.double()) & (parameter.param.double() <= high.double())
    sharp = (low == high).double().mean().item()
    differ = int((parameter.param != after_rounded(exact, param_dtype)).sum())
    assert bool(inside.all()), f"{int((~inside).sum())} of {size} outside; {differ} differ from torch rounded"
    assert sharp > 0.99, f"only {sharp:.4f} of the enclosures are a single number"
    assert bool((parameter.param != stored).any())
    for slot in range(len(moments)):
        assert ratio(parameter.moment(slot), after[1 + slot], bound.moments[slot]) <= 1.0


def after_rounded(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return exact.float().to(dtype)
