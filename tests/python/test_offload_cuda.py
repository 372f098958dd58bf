"""States in host memory beside a GPU: the bits of the same steps without offload, over 20 steps; memory, and
who waits.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from octavo import optim
from octavo.optim import CPUOffloadOptimizer
from torch import Tensor, nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")

AWAY = ("host", "stream")
WIDTH = 768


def net(dtype: torch.dtype = torch.bfloat16, depth: int = 4) -> nn.Sequential:
    """More than fits into one piece of staging memory."""
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        for _ in range(depth)
    ]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, 1000)).to(device="cuda", dtype=dtype)


def backward(model: nn.Module, seed: int) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    dtype = next(model.parameters()).dtype
    loss: Tensor = (
        100 * model(torch.randn(64, WIDTH, generator=generator, device="cuda").to(dtype)).square().mean()
    )
    loss.backward()
    return loss


def train(model: nn.Module, optimizer: Any, steps: int = 20, passes: int = 1) -> None:
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
    for step in range(steps):
        for number in range(passes):
            backward(model, 100 * step + number)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


def bits(model: nn.Module, optimizer: Any) -> list[Tensor]:
    optimizer.wait()
    states = [state for _, state in sorted(optimizer.state_dict()["state"].items())]
    tensors = [*model.parameters(), *(t for state in states for t in state.values() if isinstance(t, Tensor))]
    return [t.detach().cpu().contiguous().view(-1).view(torch.uint8) for t in tensors]


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(map(torch.equal, a, b))


KINDS: list[tuple[torch.dtype, dict[str, Any]]] = [
    (torch.bfloat16, {"state": "8bit"}),
    (torch.bfloat16, {"state": "4bit", "master": 24}),
    (torch.float32, {"state": "fp32", "clip_grad_norm": 0.1}),
    (torch.bfloat16, {"state": "8bit", "clip_grad_norm": 0.1, "skip_nonfinite": True}),
]


@pytest.mark.parametrize("kind", range(len(KINDS)))
@pytest.mark.parametrize("passes", [1, 4])
def test_bits_are_those_without_offload(passes: int, kind: int) -> None:
    dtype, options = KINDS[kind]
    plain = net(dtype)
    without = optim.AdamW(plain.parameters(), lr=1e-3, **options)
    train(plain, without, passes=passes)
    wanted = bits(plain, without)
    for residence, taken, attach in itertools.product(AWAY, (False, True), (False, True)):
        model = net(dtype)
        optimizer = optim.AdamW(
            model.parameters(), lr=1e-3, offload=residence, offload_gradients=taken, **options
        )
        if attach:
            optimizer.attach(model)
        train(model, optimizer, passes=passes)
        assert same(bits(model, optimizer), wanted), (residence, taken, attach)


@pytest.mark.parametrize("residence", AWAY)
def test_gradient_release(residence: str) -> None:
    for attach, clip in itertools.product((False, True), (None, 0.1)):
        plain, model = net(), net()
        without = optim.AdamW4bit(plain.parameters(), gradient_release=True, clip_grad_norm=clip)
        optimizer = optim.AdamW4bit(
            model.parameters(), gradient_release=True, clip_grad_norm=clip, offload=residence
        )
        if attach:
            optimizer.attach(model)
        train(plain, without)
        train(model, optimizer)
        assert same(bits(model, optimizer), bits(plain, without)), (attach, clip)


@pytest.mark.parametrize("residence", AWAY)
def test_streams_and_compiled_models(residence: str) -> None:
    plain = net()
    without = optim.AdamW8bit(plain.parameters())
    train(plain, without, 6)
    wanted = bits(plain, without)
    side = torch.cuda.Stream()
    for compiled, attach in itertools.product((False, True), (False, True)):
        torch._dynamo.reset()
        model = net()
        optimizer = optim.AdamW8bit(model.parameters(), offload=residence, offload_gradients=attach)
        called = torch.compile(model, backend="eager") if compiled else model
        if attach:
            optimizer.attach(called)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            train(called, optimizer, 6)
            found = bits(model, optimizer)
        assert same(found, wanted), (compiled, attach)


@pytest.mark.parametrize("residence", AWAY)
def test_grad_scaler(residence: str) -> None:
    def run(**options: Any) -> tuple[list[Tensor], float]:
        model = net(torch.float32)
        optimizer = optim.AdamW8bit(model.parameters(), fused=True, clip_grad_norm=0.1, **options)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**20)
        if options:
            optimizer.attach(model)
        for step in range(8):
            generator = torch.Generator("cuda").manual_seed(step)
            x = torch.randn(64, WIDTH, generator=generator, device="cuda")
            with torch.autocast("cuda", torch.float16):
                loss = model(x).float().square().mean() * (1e6 if step == 3 else 100)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return bits(model, optimizer), scaler.get_scale()

    wanted = run()
    assert wanted[1] < 2.0**20
    for taken in (False, True):
        found = run(offload=residence, offload_gradients=taken)
        assert same(found[0], wanted[0])
        assert found[1] == wanted[1]


def test_states_and_gradients_are_not_on_the_gpu() -> None:
    peaks = {}
    for options in ({}, {"offload": "stream"}, {"offload": "host", "offload_gradients": True}):
        model = net(depth=24)
        optimizer = optim.AdamW(model.parameters(), **options)  # 8 bytes of state per parameter
        train(model, optimizer, 2)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        train(model, optimizer, 2)
        optimizer.wait()
        torch.cuda.synchronize()
        peaks[str(options.get("offload"))] = torch.cuda.max_memory_allocated()
        if options:
            entry = optimizer.state[model[0][0].weight]
            assert all(
                entry[key].device.type == "cpu" and entry[key].is_pinned()
                for key in ("exp_avg", "exp_avg_sq")
            )
        params = sum(p.numel() for p in model.parameters())
        del model, optimizer
    assert peaks["None"] - peaks["stream"] > 8 * params - (80 << 20)
    assert peaks["stream"] - peaks["host"] > -(80 << 20)


def test_streamed_steps_do_not_wait_for_the_gpu() -> None:
    """As far as torch sees; and an attached step returns long before its work is done."""
    for attach, taken in itertools.product((False, True), (False, True)):
        model = net()
        optimizer = optim.AdamW8bit(model.parameters(), offload="stream", offload_gradients=taken)
        if attach:
            optimizer.attach(model)
        train(model, optimizer, 2)
        torch.cuda.set_sync_debug_mode("error")
        try:
            x = torch.ones(64, WIDTH, device="cuda", dtype=torch.bfloat16)
            for _ in range(3):
                model(x).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("taken", [False, True])
def test_cpu_offload_of_torchs_optimizers(taken: bool) -> None:
    for passes, clip in itertools.product((1, 3), (None, 0.1)):
        model, other = net(torch.float32), net(torch.float32)
        options = {"lr": 1e-3, "momentum": 0.9}
        optimizer = CPUOffloadOptimizer(
            model.parameters(), torch.optim.SGD, offload_gradients=taken, clip_grad_norm=clip, **options
        )
        train(model, optimizer, 5, passes)
        plain = torch.optim.SGD(other.parameters(), **options)
        for step in range(5):
            for number in range(passes):
                backward(other, 100 * step + number)
            if clip is not None:
                nn.utils.clip_grad_norm_(other.parameters(), clip)
            plain.param_groups[0]["lr"] = 1e-3 * (1 + torch.tensor(torch.pi * step / 50).cos().item()) / 2
            plain.step()
            plain.zero_grad()
        for mine, its in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-5)
