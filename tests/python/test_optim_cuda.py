"""octavo.optim on a GPU: equal to the CPU in bits, without waiting, in graphs, on other streams."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from octavo import optim
from torch import Tensor, nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")

STATES = ["fp32", "bf16", "8bit", "4bit", "4bit-rank1", "fp8", "fp8-e5m2", "4bit/8bit", "fp4", "fp3"]


def make_params(dtype: torch.dtype, device: str = "cpu") -> list[nn.Parameter]:
    torch.manual_seed(1)
    shapes = [(96, 128), (5001,), (64,), (33, 640), (), (0, 7)]
    return [nn.Parameter((torch.randn(s) * 0.02).to(dtype).to(device)) for s in shapes]


def feed(params: list[nn.Parameter], seed: int, scale: float = 1e-3) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in params:
        p.grad = (torch.randn(p.shape, generator=generator) * scale).to(p.dtype).to(p.device)


def same(a: list[nn.Parameter], b: list[nn.Parameter]) -> bool:
    return all(torch.equal(p.detach().cpu(), q.detach().cpu()) for p, q in zip(a, b, strict=True))


def same_states(a: optim.Optimizer, b: optim.Optimizer) -> bool:
    for left, right in zip(a.state_dict()["state"].values(), b.state_dict()["state"].values(), strict=True):
        for key, value in left.items():
            mine, its = value.cpu(), right[key].cpu()
            if mine.element_size() == 1:
                mine, its = mine.view(torch.uint8), its.view(torch.uint8)
            if not torch.equal(mine, its):
                return False
    return True


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(("dtype", "master"), [
    (torch.float32, "native"), (torch.bfloat16, "native"), (torch.bfloat16, "stochastic"),
    (torch.bfloat16, 24), (torch.bfloat16, 32), (torch.float16, "native"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["AdamW", "Lion", "SGD"])
def test_equals_the_cpu_in_bits(state: str, dtype: torch.dtype, master: Any, name: str) -> None:
    here, there = make_params(dtype), make_params(dtype, "cuda")
    options: dict[str, Any] = {"state": state, "master": master, "weight_decay": 0.1, "clip_grad_norm": 0.05}
    if name == "SGD":
        options["momentum"] = 0.9
    cls = getattr(optim, name)
    on_cpu, on_gpu = cls(here, lr=1e-2, **options), cls(there, lr=1e-2, **options)
    for turn in range(4):
        feed(here, turn)
        feed(there, turn)
        on_cpu.step()
        on_gpu.step()
    assert same(here, there)
    assert same_states(on_cpu, on_gpu)
    assert float(on_cpu.grad_norm) == float(on_gpu.grad_norm)


@pytest.mark.parametrize("options", [
    {}, {"clip_grad_norm": 1.0}, {"skip_nonfinite": True, "clip_grad_norm": 1.0}, {"capturable": True},
    {"amsgrad": True}, {"master": 24}, {"state": "4bit-rank1"},
])  # fmt: skip
def test_never_waits_for_the_gpu(options: dict[str, Any]) -> None:
    params = make_params(torch.bfloat16, "cuda")
    optimizer = optim.AdamW(params, **{"state": "8bit", **options})
    feed(params, 0)
    optimizer.step()
    optimizer.zero_grad()
    feed(params, 1)
    torch.cuda.set_sync_debug_mode("error")
    try:
        optimizer.step()
        optimizer.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_lr_on_the_gpu_is_not_waited_for() -> None:
    params, plain = make_params(torch.float32, "cuda"), make_params(torch.float32, "cuda")
    lr = torch.tensor(1e-2, device="cuda")
    optimizer, other = optim.AdamW8bit(params, lr=lr), optim.AdamW8bit(plain, lr=1e-2)
    for turn in range(3):
        feed(params, turn)
        feed(plain, turn)
        lr.fill_(1e-2 / (turn + 1))
        other.param_groups[0]["lr"] = float(lr)
        torch.cuda.set_sync_debug_mode("error")
        try:
            optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        other.step()
    assert same(params, plain)


@pytest.mark.parametrize("state", ["fp32", "8bit", "4bit", "fp8"])
def test_graph_replays_equal_eager_steps(state: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)).cuda()
    twin = copy.deepcopy(model)
    batch = torch.randn(32, 64, device="cuda")
    rates = [torch.tensor(1e-2, device="cuda") for _ in range(2)]
    made = [
        optim.AdamW(
            m.parameters(), lr=lr, state=state, capturable=True, clip_grad_norm=0.5, skip_nonfinite=True
        )
        for m, lr in zip((model, twin), rates, strict=True)
    ]

    def once(net: nn.Module, optimizer: optim.Optimizer) -> Tensor:
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for net, optimizer in zip((model, twin), made, strict=True):
            for _ in range(3):
                optimizer.zero_grad(set_to_none=False)
                once(net, optimizer)
    torch.cuda.current_stream().wait_stream(side)
    held = made[0].state[next(model.parameters())]["step"]  # a count that somebody has is in the graph, too
    once(model, made[0])
    once(twin, made[1])
    graph = torch.cuda.CUDAGraph()
    made[0].zero_grad(set_to_none=False)
    with torch.cuda.graph(graph):
        for p in model.parameters():
            p.grad.zero_()
        once(model, made[0])
    for turn in range(20):
        for lr in rates:
            lr.fill_(1e-2 / (turn + 1))
        batch.normal_()
        graph.replay()
        made[1].zero_grad(set_to_none=False)
        once(twin, made[1])
    assert same(list(model.parameters()), list(twin.parameters()))
    assert same_states(*made)
    assert all(int(entry["step"]) == 24 for entry in made[0].state.values())
    assert int(held) == 24
    # A state dict that is loaded goes into the buffers that the graph knows.
    saved = copy.deepcopy(made[0].state_dict())
    weights = copy.deepcopy(model.state_dict())
    graph.replay()
    once_more = [p.detach().clone() for p in model.parameters()]
    model.load_state_dict(weights)
    made[0].load_state_dict(saved)
    graph.replay()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), once_more, strict=True))
    # The graph's parameters share a count: all of them begin anew, or none.
    with pytest.raises(RuntimeError, match="share a step count"):
        made[0].reset_state(next(model.parameters()))
    made[0].reset_state()
    graph.replay()
    assert all(int(entry["step"]) == 1 for entry in made[0].state.values())
    assert int(held) == 1


def test_capture_needs_capturable() -> None:
    params = make_params(torch.float32, "cuda")
    optimizer = optim.AdamW8bit(params)
    feed(params, 0)
    optimizer.step()
    with pytest.raises(RuntimeError, match="capturable is False"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        optimizer.step()


def test_works_on_the_current_stream() -> None:
    params, plain = make_params(torch.float32, "cuda"), make_params(torch.float32, "cuda")
    optimizer, other = optim.AdamW8bit(params), optim.AdamW8bit(plain)
    feed(plain, 0)
    other.step()
    side = torch.cuda.Stream()
    feed(params, 0)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for p in params:
            torch.cuda._sleep(1_000_000)
            p.grad.mul_(2).div_(2)
        optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    assert same(params, plain)


def test_moves_with_its_parameters() -> None:
    here, there = make_params(torch.float32), make_params(torch.float32)
    stays, moves = optim.AdamW8bit(here), optim.AdamW8bit(there)
    for turn, device in enumerate(("cpu", "cuda", "cuda", "cpu")):
        for p in there:
            p.data = p.data.to(device)
        feed(here, turn)
        feed(there, turn)
        stays.step()
        moves.step()
    assert same(here, there)
    assert same_states(stays, moves)


def test_a_cpu_gradient_for_a_cuda_parameter_is_refused() -> None:
    params = make_params(torch.float32, "cuda")
    optimizer = optim.AdamW8bit([(f"layer.{i}", p) for i, p in enumerate(params)])
    feed(params, 0)
    optimizer.step()
    before = [p.detach().clone() for p in params]
    feed(params, 1)
    params[1].grad.data = params[1].grad.data.cpu()
    with pytest.raises(RuntimeError, match=r"'layer\.1'.*on cpu, expected cuda:0"):
        optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))


@pytest.mark.parametrize("state", ["8bit", "4bit"])
def test_loading_holds_no_fp32_copy_on_the_gpu(state: str) -> None:
    params = [nn.Parameter(torch.randn(1 << 20, device="cuda")) for _ in range(32)]
    reference = torch.optim.AdamW(params)
    for p in params:
        p.grad = torch.randn_like(p)
    reference.step()
    file = io.BytesIO()
    torch.save(reference.state_dict(), file)
    del reference
    file.seek(0)
    saved = torch.load(file, weights_only=True, map_location="cpu")
    optimizer = optim.AdamW(params, state=state)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    optimizer.load_state_dict(saved)
    states = torch.cuda.memory_allocated() - before
    assert states <= 1.1 * optimizer.state_bytes()
    assert torch.cuda.max_memory_allocated() - before <= states + (16 << 20)  # not a second set, not fp32


def test_grad_scaler_skips_on_the_device() -> None:
    params = make_params(torch.float32, "cuda")
    mirror = make_params(torch.float32, "cuda")
    ours, theirs = optim.AdamW(params, lr=1e-2, fused=True), torch.optim.AdamW(mirror, lr=1e-2, fused=True)
    scalers = [torch.amp.GradScaler("cuda", init_scale=1024.0) for _ in range(2)]
    for turn in range(4):
        for scaler, held in zip(scalers, (params, mirror), strict=True):
            feed(held, turn)
            for p in held:
                p.grad *= float(scaler.scale(torch.ones((), device="cuda")))
            if turn == 1:
                held[1].grad[7] = float("inf")
        for scaler, optimizer in zip(scalers, (ours, theirs), strict=True):
            scaler.step(optimizer)
            scaler.update()
    assert scalers[0].get_scale() == scalers[1].get_scale() == 512.0
    assert all(int(entry["step"]) == 3 for entry in ours.state.values())
    for p, q in zip(params, mirror, strict=True):
        torch.testing.assert_close(p, q, rtol=2e-6, atol=1e-7)
