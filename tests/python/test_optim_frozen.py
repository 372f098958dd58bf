"""Frozen parameters of any kind beside trained ones, as quantized base weights with adapters are: every class
accepts them and leaves them alone, as torch.optim does.
"""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import octavo
import pytest
import torch
from models import refused
from octavo import optim
from peers import need
from torch import Tensor, nn
from torch.nn import Parameter


def of_dtype(dtype: torch.dtype) -> Callable[[], Parameter]:
    """Linear4bit of bitsandbytes has uint8 weights of the shape [bytes, 1]."""
    return lambda: Parameter(torch.ones(8192, 1).to(dtype), requires_grad=False)


def of_torchao() -> Parameter:
    need("torchao")
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    layer = nn.Linear(128, 128).requires_grad_(False)
    quantize_(layer, Int8WeightOnlyConfig())
    assert type(layer.weight.data) is not Tensor
    return layer.weight


KINDS: dict[str, Callable[[], Parameter]] = {
    "uint8": of_dtype(torch.uint8),
    "int8": of_dtype(torch.int8),
    "float64": of_dtype(torch.float64),
    "float8": of_dtype(torch.float8_e4m3fn),
    "complex": of_dtype(torch.complex64),
    "meta": lambda: Parameter(torch.empty(128, 128, device="meta"), requires_grad=False),
    "gaps": lambda: Parameter(torch.ones(128, 256)[:, ::2], requires_grad=False),
    "sparse": lambda: Parameter(torch.eye(128).to_sparse(), requires_grad=False),
    "torchao": of_torchao,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "master": {"master": 24},
    "release": {"gradient_release": True},
    "clip": {"clip_grad_norm": 0.1, "skip_nonfinite": True},
    "host": {"offload": "host", "offload_gradients": True},
    "stream": {"offload": "stream"},
    "budget": {"offload": "host", "gpu_state_budget": 10000},
}


def adapters() -> list[Parameter]:
    values = torch.randn(2, 64, 128, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    return [Parameter(values[0].clone()), Parameter(values[1].clone())]


def run(optimizer: torch.optim.Optimizer, trained: list[Parameter], steps: int) -> list[Tensor]:
    for step in range(steps):
        sum(((p.float() - step) ** 2).sum() for p in trained).backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach().clone() for p in trained]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_frozen_parameters_change_nothing(kind: str, options: str) -> None:
    """Neither the steps of the others nor what is saved of them, in bits."""
    results = []
    for with_frozen in (False, True):
        first, second = adapters()
        given = [first, KINDS[kind](), second] if with_frozen else [first, second]
        optimizer = optim.AdamW8bit(given, lr=1e-2, **OPTIONS[options])
        run(optimizer, [first, second], 2)
        if with_frozen:
            assert given[1] not in optimizer.state
            assert len(optimizer.state_dict()["param_groups"][0]["params"]) == 3
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        resumed = optim.AdamW8bit(given, lr=1e-2, **OPTIONS[options])
        optimizer.settle()
        resumed.load_state_dict(torch.load(file))
        del optimizer
        results.append(run(resumed, [first, second], 2))
    assert all(map(torch.equal, *results))


@pytest.mark.parametrize("kind", ["uint8", "float8", "torchao"])
@pytest.mark.parametrize("name", ["AdamW", "SGD8bit", "Lion4bit", "LAMB", "PagedAdamW8bit", "AdEMAMixFp8"])
def test_every_class_accepts_them(name: str, kind: str) -> None:
    trained = adapters()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bfloat16 without master bits
        optimizer = getattr(optim, name)([KINDS[kind](), *trained])
        optimizer.add_param_group({"params": [KINDS[kind]()]})
        run(optimizer, trained, 1)
        copied = copy.deepcopy(optimizer) if kind != "torchao" else optimizer
    assert len(copied.state) == 2
    optimizer.portable_state_dict()
    assert optimizer.master_parameters() == {}


def test_one_that_gets_a_gradient_later_is_an_error() -> None:
    param, trained = Parameter(torch.ones(3, dtype=torch.float64), requires_grad=False), adapters()
    optimizer = optim.AdamW([("base", param), ("a", trained[0]), ("b", trained[1])], master=24)
    run(optimizer, trained, 1)
    param.requires_grad_()
    param.sum().backward()
    for each in trained:
        each.grad = torch.ones_like(each)
    with refused(
        optimizer, RuntimeError, "AdamW: parameter 'base': torch.float64 parameters are not supported"
    ):
        optimizer.step()


@pytest.mark.parametrize("offload", ["none", "host"])
def test_one_that_is_made_usable_is_stepped(offload: str) -> None:
    param, trained = Parameter(torch.ones(8192, dtype=torch.float64), requires_grad=False), adapters()
    optimizer = optim.AdamW8bit([param, *trained], offload=offload, master=24)
    run(optimizer, trained, 1)
    param.data = param.data.float()
    param.requires_grad_()
    run(optimizer, [param], 1)
    assert param.dtype == torch.float32
    assert bool((param != 1).all())
    assert optimizer.state[param]["exp_avg"].dtype == torch.uint8


def test_a_saved_state_of_one_is_an_error() -> None:
    trained = adapters()
    optimizer = optim.AdamW8bit(trained, master=24)
    run(optimizer, trained, 1)
    saved = optimizer.state_dict()
    other = optim.AdamW8bit([("base", of_dtype(torch.uint8)()), ("a", trained[1])], master=24)
    with refused(other, RuntimeError, "parameter 'base': torch.uint8 parameters are not supported"):
        other.load_state_dict(saved)


@pytest.mark.parametrize("options", [{}, {"offload": "host"}, {"gradient_release": True}, {"master": 24}])
def test_plans_count_them_as_weights(options: dict[str, Any]) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = Parameter(torch.zeros(1 << 20, 1, dtype=torch.uint8), requires_grad=False)
            self.adapter = nn.Linear(512, 512, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.adapter(x)

    report = octavo.plan(Model(), lambda p: optim.AdamW8bit(p, **options), (8, 512), gpu="a100")
    assert report.owners["weights"] == (1 << 20) + 4 * 512 * 512
