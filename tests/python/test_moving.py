"""The page docs/guides/moving.md: its code runs, and state dicts of each origin load and continue.

test_importers_peers.py compares loaded states in bits, test_next_step.py the steps after them. Here are the
forms that those two lack: torchao's CPUOffloadOptimizer, DeepSpeed's ZeRO and Transformer Engine's layers.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import clients
import pytest
import torch
from models import frozen, make_params, refused
from octavo import fp8, optim
from octavo.fp8 import devices
from peers import need
from torch import nn

# Two are below minimal_size. The others are multiples of 256, because torchao quantizes only those.
SIZES = [(80, 64), (17,), (64, 100), (4096,), (5, 7)]


@contextlib.contextmanager
def torchaos_class(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """torchao's CPUOffloadOptimizer, made for GPUs, with parameters on the CPU: streams do nothing there."""
    need("torchao")
    module = importlib.import_module("torchao.optim.cpu_offload")

    class Stream:
        def wait_stream(self, other: Any) -> None: ...
        def record_event(self) -> Any:
            return types.SimpleNamespace(synchronize=lambda: None)

        def synchronize(self) -> None: ...

    def empty_like(tensor: Any, pin_memory: bool = False, **options: Any) -> Any:
        return torch.empty_like(tensor, **options)

    cuda = types.SimpleNamespace(
        Stream=Stream, current_stream=Stream, stream=lambda stream: contextlib.nullcontext()
    )
    fake = types.SimpleNamespace(cuda=cuda, empty_like=empty_like, no_grad=torch.no_grad, optim=torch.optim)
    with monkeypatch.context() as patch:
        patch.setattr(module, "torch", fake)
        patch.setattr(module, "get_available_devices", lambda: ["cuda"])
        yield module.CPUOffloadOptimizer


def backward(params: list[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    loss = sum((p * torch.randn(p.shape, generator=generator)).sum() for p in params if p.requires_grad)
    loss.backward()  # type: ignore[union-attr]


def saved_by(optimizer: Any) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return file


def two_groups(params: list[nn.Parameter]) -> list[dict[str, Any]]:
    """Large and small parameters in both, and a frozen one."""
    params[3].requires_grad_(False)
    return [{"params": params[:2], "lr": 0.02}, {"params": params[2:], "weight_decay": 0.1}]


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize(
    ("inside", "make", "difference"),
    [
        ("torch AdamW", lambda groups: optim.CPUOffloadOptimizer(groups), 1e-6),
        ("torch AdamW", lambda groups: optim.AdamW(groups), 1e-6),
        ("torch AdamW", lambda groups: optim.AdamW(groups, offload="host"), 1e-6),
        ("torch AdamW", lambda groups: optim.AdamW8bit(groups), 3e-3),
        ("torchao AdamW8bit", lambda groups: optim.AdamW8bit(groups), 1e-6),
        ("torchao AdamW4bit", lambda groups: optim.AdamW4bit(groups), 1e-6),
    ],
)
def test_torchaos_cpu_offload(
    inside: str, make: Any, difference: float, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, name = inside.split()
    base = getattr(importlib.import_module("torch.optim" if package == "torch" else "torchao.optim"), name)
    params = make_params(SIZES)
    copies = copy.deepcopy(params)
    with torchaos_class(monkeypatch) as theirs, torch.compiler.set_stance("force_eager"):
        optimizer = theirs(two_groups(params) if grouped else params, base, lr=1e-2)
        for step in range(4):
            backward(params, step)
            optimizer.step()
            optimizer.zero_grad()
            if step == 2:
                file, start = saved_by(optimizer), [p.detach().clone() for p in params]
    mine = make(two_groups(copies) if grouped else copies)
    mine.load_state_dict(torch.load(file, weights_only=True))
    rates = [float(group["lr"]) for group in mine.param_groups]
    assert rates == pytest.approx([0.02, 1e-2] if grouped else [1e-2])
    with torch.no_grad():
        for param, value in zip(copies, start, strict=True):
            param.copy_(value)
    backward(copies, 3)
    mine.step()
    for param, other, before in zip(copies, params, start, strict=True):
        assert not param.requires_grad or not torch.equal(param, before)
        assert float((param - other).detach().abs().max()) <= difference


def test_torchaos_cpu_offload_without_small_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    params = make_params([(80, 64), (64, 100)])
    with torchaos_class(monkeypatch) as theirs:
        optimizer = theirs(params)
        backward(params, 0)
        optimizer.step()
        saved = optimizer.state_dict()
    mine = optim.AdamW(params)
    mine.load_state_dict(saved)
    for param, one in zip(params, saved["offloaded"], strict=True):
        assert torch.equal(mine.state[param]["exp_avg"], one["state"][0]["exp_avg"])


def test_torchaos_cpu_offload_of_another_model(monkeypatch: pytest.MonkeyPatch) -> None:
    params = make_params(SIZES)
    with torchaos_class(monkeypatch) as theirs:
        optimizer = theirs(params)
        backward(params, 0)
        optimizer.step()
        saved = optimizer.state_dict()
    mine = optim.AdamW(make_params(SIZES[:-1]))
    with refused(mine, ValueError, "has 3 parameters on the CPU and 2 on the device, expected 4 in all"):
        mine.load_state_dict(saved)
    mine = optim.AdamW(make_params([(80, 64), (17,), (64, 101), (4096,), (5, 7)]))
    with refused(mine, ValueError, r"exp_avg has shape \(64, 100\)"):
        mine.load_state_dict(saved)


def zero_file() -> dict[str, Any]:
    """The keys of a rank's file of DeepSpeed 0.19.8, stage 2."""
    flat = {"step": torch.tensor(3.0), "exp_avg": torch.zeros(9), "exp_avg_sq": torch.zeros(9)}
    base = {"state": {0: flat}, "param_groups": [{"lr": 1e-3, "params": [0]}]}
    part = {"base_optimizer_state": base, "zero_stage": 2, "partition_count": [1], "ds_version": "0.19.8"}
    return {"optimizer_state_dict": part, "ds_config": {}, "ds_version": "0.19.8"}


@pytest.mark.parametrize("make", [optim.AdamW8bit, optim.CPUOffloadOptimizer])
def test_a_zero_checkpoint_is_refused(make: Any) -> None:
    optimizer = make([nn.Parameter(torch.zeros(3, 3))])
    before = frozen(optimizer.state_dict())
    for saved in (zero_file(), zero_file()["optimizer_state_dict"]):
        with pytest.raises(ValueError, match=r"a file of DeepSpeed's ZeRO.*zero_to_fp32\.py"):
            optimizer.load_state_dict(saved)
    assert frozen(optimizer.state_dict()) == before


# --- The pages ------------------------------------------------------------------------------------


def stack() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 96), nn.GELU(), nn.Linear(96, 64))


def trained_by(make: Any, model: nn.Module) -> Any:
    optimizer = make(model.parameters())
    with torch.compiler.set_stance("force_eager"):
        for step in range(3):
            backward(list(model.parameters()), step)
            optimizer.step()
            optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("library", ["bitsandbytes", "torchao"])
def test_the_pages_checkpoint(library: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """moving.md: AdamW8bit continues from the file of another library."""
    need(library)
    theirs = importlib.import_module(f"{library}.optim")
    model = stack()
    optimizer = trained_by(theirs.AdamW8bit, model)
    torch.save(optimizer.state_dict(), tmp_path / "theirs.pt")
    copied = copy.deepcopy(model)
    monkeypatch.chdir(tmp_path)
    mine = clients.run_guide("moving.md", 5, {"model": copied})["optimizer"]
    assert type(mine) is optim.AdamW8bit
    for number, one in ((3, model), (3, copied)):
        backward(list(one.parameters()), number)
    with torch.compiler.set_stance("force_eager"):
        optimizer.step()
    mine.step()
    for param, other in zip(copied.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(param, other, rtol=0, atol=1e-6)


def test_the_page_on_quantized_layers() -> None:
    """moving.md: adapters beside a Linear4bit train, and the layer stays bitsandbytes'."""
    bnb = need("bitsandbytes")

    class Adapted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.base = bnb.nn.Linear4bit(128, 128, bias=False, compute_dtype=torch.float32).to("cpu")
            self.down, self.up = nn.Linear(128, 64, bias=False), nn.Linear(64, 128, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + self.up(self.down(x))  # type: ignore[no-any-return]

    model = Adapted()
    base = model.base.weight.detach().clone()
    optimizer = clients.run_guide("moving.md", 1, {"model": model})["optimizer"]
    assert base.dtype == torch.uint8
    x, y = torch.randn(4, 128), torch.randn(4, 128)
    losses = []
    for _ in range(5):
        loss = (model(x) - y).square().mean()
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0]
    assert torch.equal(model.base.weight, base)
    assert optimizer.state[model.down.weight]["exp_avg"].dtype == torch.uint8


class NormLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(32), nn.Linear(32, 48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.norm(x))  # type: ignore[no-any-return]


@pytest.fixture
def fp8_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    devices._why_not.cache_clear()
    with monkeypatch.context() as patch:
        patch.setenv("OCTAVO_FP8_REFERENCE", "1")
        yield
    devices._why_not.cache_clear()


def test_the_page_on_fp8(
    fp8_on_the_cpu: None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """moving.md: a model is converted and trains, and weights load by the page's names."""
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module("body", NormLinear())
    model.add_module("lm_head", nn.Linear(48, 64))

    class Loss:
        def backward(self) -> None:
            model(torch.randn(16, 32)).square().mean().backward()

    before = copy.deepcopy(model.state_dict())
    clients.run_guide("moving.md", 3, {"model": model, "loss": Loss()})
    assert type(model.body.linear) is fp8.Linear
    assert type(model.lm_head) is nn.Linear
    assert not torch.equal(model.body.linear.weight, before["body.linear.weight"])
    saved = {
        "layer_norm_weight": torch.full((32,), 2.0),
        "layer_norm_bias": torch.ones(32),
        "weight": torch.randn(48, 32),
        "bias": torch.randn(48),
        "_extra_state": torch.zeros(64, dtype=torch.uint8),
    }
    torch.save(saved, tmp_path / "te.pt")
    monkeypatch.chdir(tmp_path)
    clients.run_guide("moving.md", 4, {"model": model.body})
    assert torch.equal(model.body.linear.weight, saved["weight"])
    assert torch.equal(model.body.norm.weight, saved["layer_norm_weight"])
