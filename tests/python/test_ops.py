"""torch.ops.octavo.step: equal to the optimizers, sound for torch.compile; and compiled training steps."""

from __future__ import annotations

import copy
from typing import Any

import octavo.ops
import pytest
import torch
from octavo import optim
from octavo._describe import FLAG, algorithms
from torch import Tensor, nn

CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU")
)
DEVICES = ["cpu", CUDA]
LAYOUTS = {
    "fp32": (torch.float32, 1, 0),
    "8bit": (torch.uint8, 1, 256),
    "4bit": (torch.uint8, 2, 128),
    "fp8": (torch.float8_e4m3fn, 1, 256),
}


def state_tensors(params: list[Tensor], state: str, moments: int) -> tuple[list[Tensor], list[Tensor]]:
    dtype, per_byte, block = LAYOUTS[state]
    codes, scales = [], []
    for _ in range(moments):
        for p in params:
            shape = p.shape if per_byte == 1 else torch.Size([-(-p.numel() // 2)])
            codes.append(torch.zeros(shape, device=p.device).to(dtype))
            scales.append(torch.zeros(-(-p.numel() // block) if block else 0, device=p.device))
    return codes, scales


def make_params(device: str) -> list[Tensor]:
    torch.manual_seed(3)
    return [torch.randn(64, 100, device=device), torch.randn(5000, device=device)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("state", list(LAYOUTS))
@pytest.mark.parametrize("algorithm", ["adam", "adamw", "lion"])
def test_equals_the_optimizer(device: str, state: str, algorithm: str) -> None:
    mine, theirs = make_params(device), [nn.Parameter(p) for p in make_params(device)]
    classes = {"adam": optim.Adam, "adamw": optim.AdamW, "lion": optim.Lion}
    optimizer = classes[algorithm](theirs, lr=1e-2, weight_decay=0.1, state=state)
    codes, scales = state_tensors(mine, state, 1 if algorithm == "lion" else 2)
    step, beta2 = torch.zeros((), dtype=torch.int64), 0.99 if algorithm == "lion" else 0.999
    for _ in range(3):
        grads = [torch.randn_like(p) for p in mine]
        for p, g in zip(theirs, grads, strict=True):
            p.grad = g.clone()
        optimizer.step()
        octavo.ops.step(
            algorithm, mine, grads, codes, scales, [], step, torch.tensor(1e-2), beta2=beta2, weight_decay=0.1
        )
    assert int(step) == 3
    for p, q in zip(mine, theirs, strict=True):
        assert torch.equal(p, q)
        entry = optimizer.state[q]
        assert torch.equal(
            entry["exp_avg"].view(torch.uint8), codes[0 if p is mine[0] else 1].view(torch.uint8)
        )


@pytest.mark.parametrize("algorithm", [name for name, a in algorithms().items() if a.all_slots])
def test_every_algorithm_by_its_description(algorithm: str) -> None:
    """With every option that is not its default; without a word of Python about the algorithm."""
    described = algorithms()[algorithm]
    mine, theirs = make_params("cpu"), [nn.Parameter(p) for p in make_params("cpu")]
    flags = {o.name: 1.0 - o.default for o in described.options if o.range == FLAG and o.name != "nesterov"}
    numbers = {o.name: 0.7 * o.default or 0.3 for o in described.options if o.range != FLAG}
    numbers |= {"lr": 1e-2} | {o.name: 9.0 for o in described.options if o.optional}
    given, group = {**numbers, **flags}, {}
    for option in described.options:
        value = given.get(option.name, 0.0)
        if option.tuple:
            group[option.tuple] = (*group.get(option.tuple, ()), value)
        else:
            group[option.name] = bool(value) if option.range == FLAG else value
    optimizer = getattr(optim, described.title)(theirs, **group, state="8bit")
    codes, scales = state_tensors(mine, "8bit", len(described.slots(described.switches(group))))
    step = torch.zeros((), dtype=torch.int64)
    for _ in range(3):
        grads = [torch.randn_like(p) for p in mine]
        for p, g in zip(theirs, grads, strict=True):
            p.grad = g.clone()
        optimizer.step()
        octavo.ops.step(
            algorithm, mine, grads, codes, scales, [], step, torch.tensor(1e-2),
            names=",".join(given), values=list(given.values()),
        )  # fmt: skip
    for p, q in zip(mine, theirs, strict=True):
        assert torch.equal(p, q)
        assert not torch.equal(p, make_params("cpu")[0 if p.dim() == 2 else 1])


def test_options_that_an_algorithm_does_not_have() -> None:
    args: tuple[Any, ...] = ([], [], [], [], [], torch.zeros((), dtype=torch.int64), torch.tensor(0.1))
    with pytest.raises(ValueError, match="lion has no option 'alpha', expected one of lr, beta1"):
        octavo.ops.step("lion", *args, names="alpha", values=[0.5])
    with pytest.raises(ValueError, match="got 2 values for 1 names"):
        octavo.ops.step("lion", *args, names="beta1", values=[0.5, 0.5])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("state", ["fp32", "8bit", "4bit"])
def test_opcheck(device: str, state: str) -> None:
    params = make_params(device)
    grads = [torch.randn_like(p) for p in params]
    codes, scales = state_tensors(params, state, 2)
    count = torch.zeros((), dtype=torch.int64)
    arguments = ("adamw", params, grads, codes, scales, [], count, torch.tensor(1e-2))
    torch.library.opcheck(octavo.ops.step, arguments, {"weight_decay": 0.1})


def test_in_a_full_graph() -> None:
    params = make_params("cpu")
    grads = [torch.randn_like(p) for p in params]
    expected = [p.clone() for p in params]
    lr = torch.tensor(1e-2)

    def two_steps(params: list[Tensor], codes: list[Tensor], scales: list[Tensor], count: Tensor) -> Tensor:
        for _ in range(2):
            octavo.ops.step("adamw", params, [g * 2 for g in grads], codes, scales, [], count, lr)
        return params[0].sum() + params[1].sum()

    plain = two_steps(expected, *state_tensors(expected, "8bit", 2), torch.zeros((), dtype=torch.int64))
    compiled = torch.compile(two_steps, backend="aot_eager", fullgraph=True)
    count = torch.zeros((), dtype=torch.int64)
    found = compiled(params, *state_tensors(params, "8bit", 2), count)
    assert torch.equal(found, plain)
    assert int(count) == 2
    assert all(torch.equal(p, q) for p, q in zip(params, expected, strict=True))


def test_refuses_buffers_of_the_wrong_size() -> None:
    params = make_params("cpu")
    grads = [torch.randn_like(p) for p in params]
    codes, scales = state_tensors(params, "8bit", 2)
    count, lr = torch.zeros((), dtype=torch.int64), torch.tensor(1e-2)
    before = [p.clone() for p in params]
    with pytest.raises(ValueError, match="scales"):
        octavo.ops.step("adamw", params, grads, codes, [s[:-1] for s in scales], [], count, lr)
    with pytest.raises(ValueError, match="gradients"):
        octavo.ops.step("adamw", params, grads[:1], codes, scales, [], count, lr)
    with pytest.raises(ValueError, match="contiguous"):
        octavo.ops.step(
            "adamw", params, [grads[0].t().contiguous().t(), grads[1]], codes, scales, [], count, lr
        )
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))
    assert int(count) == 0


@pytest.mark.parametrize("device", DEVICES)
def test_a_compiled_training_step_equals_the_eager_one(device: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64)).to(device)
    other = copy.deepcopy(model)
    batches = [torch.randn(16, 64, device=device) for _ in range(4)]

    def train(net: nn.Module, optimizer: torch.optim.Optimizer, compile_it: bool) -> None:
        def one(batch: Tensor) -> Tensor:
            loss = net(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run = torch.compile(one, backend="aot_eager") if compile_it else one
        for batch in batches:
            run(batch)

    train(model, optim.AdamW8bit(model.parameters(), lr=1e-2), False)
    train(other, optim.AdamW8bit(other.parameters(), lr=1e-2), True)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_what_does_not_fit_is_refused(device: str) -> None:
    """The core trusts addresses and sizes."""
    param = torch.ones(5000, dtype=torch.bfloat16, device=device)
    codes, scales = state_tensors([param], "8bit", 2)
    master, count, rate = torch.zeros_like(param, dtype=torch.int8), torch.tensor(0), torch.tensor(0.1)

    def step(
        algorithm: str = "adamw",
        param: Tensor = param,
        scales: list[Tensor] = scales,
        master: Tensor = master,
        count: Tensor = count,
        rate: Tensor = rate,
    ) -> None:
        octavo.ops.step(algorithm, [param], [param.clone()], codes, scales, [master], count, rate)

    with pytest.raises(ValueError, match="algorithm is 'rprop', expected one of adam, adamw, sgd, lion"):
        step(algorithm="rprop")
    with pytest.raises(ValueError, match=r"tensor 0 is torch.float64, expected float32"):
        step(param=param.double())
    with pytest.raises(ValueError, match=r"scales 0 are torch.float16"):
        step(scales=[s.half() for s in scales])
    with pytest.raises(
        ValueError, match=r"master 0 is torch.int8 of 3 elements, expected int8 or int16 of 5000"
    ):
        step(master=master[:3])
    with pytest.raises(ValueError, match=r"step is torch.float32 of 1 elements, expected one int64"):
        step(count=count.float())
    with pytest.raises(ValueError, match=r"step is -2, expected the number of steps taken, 0 or more"):
        step(count=torch.tensor(-2))
    for bad in (-0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=rf"lr is {bad}, expected a number of 0 or more"):
            step(rate=torch.tensor(bad))
    with pytest.raises(ValueError, match=r"lr has 2 elements, expected one"):
        step(rate=torch.zeros(2))
    assert bool((param == 1).all())
    step()
    assert not bool((param == 1).any())
