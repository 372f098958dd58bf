"""Triad (three moments, two passes) and 6bit, the examples of docs/guides/add_an_optimizer.md and
add_a_format.md, driven from Python: nothing in the package is written for them. The library
was built with lists.h of this folder.
"""

from __future__ import annotations

import inspect
import io
import math
from collections.abc import Iterator

import numpy as np
import octavo.optim
import pytest
import reference
import torch
from octavo import _abi
from octavo_abi import Group, Parameter

MOMENTS = {"fast_avg": "first", "exp_avg_sq": "second", "slow_avg": "first"}
SHAPES = [(40, 128), (67, 77), (10,)]  # complete blocks, a tail, and one so small that its states are fp32


@pytest.fixture(params=["scalar", ""])
def implementation(request: pytest.FixtureRequest) -> Iterator[None]:
    """The reference kernels, and those that this machine gets."""
    _abi.check(_abi.library().octavo_force_implementation(request.param.encode()))
    yield
    _abi.check(_abi.library().octavo_force_implementation(b""))


def parameters() -> list[torch.nn.Parameter]:
    random = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(shape, generator=random)) for shape in SHAPES]


def set_gradients(params: list[torch.nn.Parameter], step: int) -> None:
    random = torch.Generator().manual_seed(100 + step)
    for p in params:
        p.grad = torch.randn(p.shape, generator=random) * 0.1


def doubles(tensor: torch.Tensor) -> reference.Doubles:
    return tensor.detach().double().numpy().reshape(-1)


def moment(state: dict[str, torch.Tensor], name: str, count: int) -> reference.Doubles:
    if f"{name}_scale" not in state:
        return doubles(state[name])
    scales = doubles(state[f"{name}_scale"])
    return reference.decoded(state[name].numpy(), scales, MOMENTS[name], count)


def test_the_class_has_the_options_of_the_description() -> None:
    given = inspect.signature(octavo.optim.Triad).parameters
    shown = {name: each.default for name, each in given.items()}
    expected = {"lr": 1e-3, "betas": (0.9, 0.999, 0.99), "alpha": 0.5, "eps": 1e-8, "weight_decay": 0.0}
    assert {name: shown[name] for name in expected} == expected
    assert issubclass(octavo.optim.Triad8bit, octavo.optim.Triad)


@pytest.mark.parametrize("state", ["fp32", "6bit"])
def test_steps_follow_the_formula(state: str, implementation: None) -> None:
    options = {"lr": 0.01, "betas": (0.8, 0.95, 0.9), "alpha": 0.7, "eps": 1e-6, "weight_decay": 0.1}
    params, rule = parameters(), reference.Triad(**options)
    optimizer = octavo.optim.Triad(params, state=state, **options)
    before = [dict.fromkeys(MOMENTS, np.zeros(p.numel())) for p in params]
    for step in range(4):
        set_gradients(params, step)
        old = [doubles(p).copy() for p in params]
        optimizer.step()
        for p, was, moments in zip(params, old, before, strict=True):
            assert p.grad is not None
            expected = rule.moments(doubles(p.grad), moments)
            after = rule.param(was, rule.direction(expected))
            assert (np.abs(doubles(p) - after.value) <= after.error).all()
            coded = state == "6bit" and p.numel() >= 4096
            for name, near in expected.items():
                moments[name] = moment(optimizer.state[p], name, p.numel())
                limit = reference.distance_to_grid(near, MOMENTS[name]) if coded else near.error
                assert (np.abs(moments[name] - near.value) <= limit).all(), name


def test_the_format_serves_other_algorithms() -> None:
    """The first step has no earlier moments, and computes with the new ones before it stores them."""
    results = []
    for state in ("6bit", "fp32"):
        params = parameters()
        optimizer = octavo.optim.AdamW(params, lr=0.01, state=state)
        set_gradients(params, 0)
        optimizer.step()
        results.append(torch.cat([p.detach().reshape(-1) for p in params]))
        sizes = [optimizer.state[p]["exp_avg"].numel() for p in params]
        widths = 6 / 8 if state == "6bit" else 1
        assert sizes == [math.ceil(5120 * widths), math.ceil(67 * 77 * widths), 10]
    assert torch.equal(*results)


@pytest.mark.parametrize("state", ["fp32", "6bit", "8bit"])
def test_saved_and_loaded_it_goes_on_as_if_nothing_had_happened(state: str) -> None:
    whole, params = parameters(), parameters()
    optimizers = [octavo.optim.Triad(each, lr=0.01, state=state) for each in (whole, params)]
    for step in range(4):
        if step == 2:
            file = io.BytesIO()
            torch.save(optimizers[1].state_dict(), file)
            file.seek(0)
            optimizers[1] = octavo.optim.Triad(params, lr=0.5, state=state)
            optimizers[1].load_state_dict(torch.load(file, weights_only=True))
        for each, optimizer in zip((whole, params), optimizers, strict=True):
            set_gradients(each, step)
            optimizer.step()
    for one, other in zip(whole, params, strict=True):
        assert torch.equal(one, other)
        for key, value in optimizers[0].state[one].items():
            assert torch.equal(value, optimizers[1].state[other][key]), key


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"alpha": -1.0}, "alpha"),
        ({"alpha": math.nan}, "alpha"),
        ({"betas": (0.9, 0.999, 1.0)}, "beta"),
        ({"betas": (0.9, 0.999)}, "betas"),
        ({"lr": -1.0}, "lr|learning rate"),
        ({"state": "7bit"}, "7bit.*6bit"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        octavo.optim.Triad(parameters(), **options)
    with pytest.raises(TypeError, match="gamma"):
        octavo.optim.Triad(parameters(), gamma=1.0)


def test_a_format_that_the_algorithm_excludes_is_an_error_with_those_it_takes() -> None:
    """In Python, and in the core for everybody else."""
    with pytest.raises(ValueError, match=r"4bit-rank1.*fp32.*6bit"):
        octavo.optim.Triad(parameters(), state="4bit-rank1")
    tensor = Parameter(np.ones((64, 64), np.float32), np.ones((64, 64), np.float32), "4bit-rank1")
    with pytest.raises(
        _abi.OctavoError, match=r"format: got 4bit-rank1, expected one of fp32, .*6bit.*triad supports"
    ):
        Group("triad", [tensor])
