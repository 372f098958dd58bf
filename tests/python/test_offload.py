"""States in host memory: steps have the bits that they have without. Parameters on the CPU go through the
same queues as a GPU's, which are threads there.
"""

from __future__ import annotations

import copy
import functools
import gc
import io
import itertools
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from models import frozen
from octavo import optim
from octavo.optim import hooks
from octavo.optim.offload import offloaded_steps as offloading
from octavo.optim.offload_options import Options
from torch import Tensor, nn
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

AWAY = ("host", "stream")
FORMATS = ("fp32", "8bit", "4bit")


@pytest.fixture(autouse=True)
def _gather_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several sets of gradients in one backward pass, and more than are kept."""
    monkeypatch.setattr(hooks, "GATHERED_BYTES", 1 << 14)
    monkeypatch.setattr(offloading, "RETAINED_BYTES", 1 << 15)


class Net(nn.Module):
    """Parameters to offload, small ones that stay, one that is used outside its module, one that is not used
    at all.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = nn.Linear(48, 130)
        self.norm = nn.LayerNorm(130)
        self.second = nn.Linear(130, 65)
        self.table = nn.Parameter(torch.randn(65, 70))
        self.bare = nn.Linear(70, 60, bias=False)
        self.unused = nn.Parameter(torch.randn(70, 70))
        self.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.norm(self.first(x)))
        return nn.functional.linear(self.second(hidden) @ self.table, self.bare.weight)


def net(dtype: torch.dtype = torch.float32, seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net(dtype)


def backward(model: nn.Module, seed: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    x = torch.randn(8, 48, generator=generator).to(dtype)
    (model(x).square().mean() * scale).backward()


def train(
    model: nn.Module, optimizer: Any, steps: int = 5, passes: int = 1, first: int = 0, scheduler: Any = None
) -> None:
    for step in range(first, first + steps):
        for number in range(passes):
            backward(model, 100 * step + number, 10.0)
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()


def bits(model: nn.Module, optimizer: Any) -> Any:
    """Everything that a step has written."""
    optimizer.wait()
    states = optimizer.state_dict()["state"]
    return frozen([list(model.parameters()), states])


def make(model: nn.Module, name: str = "AdamW", **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*: parameter")  # of updates that bf16 loses
        return getattr(optim, name)(model.parameters(), lr=1e-2, **options)


@functools.cache
def expected(dtype: torch.dtype, passes: int, steps: int = 5, name: str = "AdamW", **options: Any) -> Any:
    model = net(dtype)
    optimizer = make(model, name, **options)
    train(model, optimizer, steps, passes)
    return bits(model, optimizer)


# --- The matrix -----------------------------------------------------------------------------------


@pytest.mark.parametrize("attach", [False, True])
@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("residence", AWAY)
def test_bits_are_those_without_offload(residence: str, taken: bool, attach: bool) -> None:
    kinds = itertools.product((torch.float32, torch.bfloat16), (1, 4), (None, 0.3), FORMATS)
    for dtype, passes, clip, state in kinds:
        model = net(dtype)
        optimizer = make(model, state=state, clip_grad_norm=clip, offload=residence, offload_gradients=taken)
        if attach:
            optimizer.attach(model)
        train(model, optimizer, passes=passes)
        wanted = expected(dtype, passes, state=state, clip_grad_norm=clip)
        assert bits(model, optimizer) == wanted, (dtype, passes, clip, state)
        if clip is not None:
            assert optimizer.grad_norm is not None


@pytest.mark.parametrize("residence", AWAY)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("AdamW", {"state": "8bit", "master": 24}),
        ("AdamW", {"state": "4bit", "master": 32, "amsgrad": True}),
        ("AdamW", {"state": "8bit", "master": "stochastic", "seed": 3}),
        ("AdamW", {"state": "4bit-rank1"}),
        ("AdamW", {"state": "fp8", "skip_nonfinite": True}),
        ("SGD", {"state": "8bit", "momentum": 0.9}),
        ("SGD", {}),
        ("Lion", {"state": "8bit"}),
        ("LAMB", {"state": "8bit", "trust_ratio": True}),
        ("AdEMAMix", {"state": "8bit"}),
        ("Adagrad", {"state": "fp32", "initial_accumulator_value": 0.1}),
    ],
)
def test_algorithms_and_masters(name: str, options: dict[str, Any], residence: str) -> None:
    dtype = torch.bfloat16
    model = net(dtype)
    optimizer = make(model, name, **options, offload=residence)
    train(model, optimizer)
    assert bits(model, optimizer) == expected(dtype, 1, name=name, **options)


@pytest.mark.parametrize("residence", AWAY)
def test_accumulation_in_fp32(residence: str) -> None:
    """The sum of bf16 gradients is fp32's, which a run of fp32 gradients has."""
    model, other = net(torch.bfloat16), net(torch.bfloat16)
    optimizer = make(model, offload=residence, offload_gradients=True, accumulate_in_fp32=True)
    plain = make(other)
    for step in range(3):
        sums: dict[Tensor, Tensor] = {}
        for number in range(3):
            backward(model, 10 * step + number)
            backward(other, 10 * step + number)
            for param in other.parameters():
                if param.grad is not None:
                    grad = param.grad.float()
                    sums[param] = sums[param] + grad if param in sums else grad
                    param.grad = None
        away = {id(p) for p in other.parameters() if p.numel() >= 4096}
        optimizer.step()
        for param, total in sums.items():
            if id(param) in away:
                param.grad = None
                param.grad_dtype = torch.float32
                param.grad = total
        small = [p for p in other.parameters() if id(p) not in away]
        for mine, its in zip(model.parameters(), other.parameters(), strict=True):
            if any(its is p for p in small):
                with torch.no_grad():
                    its.copy_(mine)
        plain.step()
        plain.zero_grad()
    for (name, mine), its in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, its), name


# --- Where states are -----------------------------------------------------------------------------


def residences(model: nn.Module, optimizer: Any) -> dict[str, int]:
    backward(model, 1)
    optimizer.step()
    by_param = {id(m.param): m for m in optimizer._roster.members}
    return {
        name: optimizer._offload.residence(by_param[id(param)]) for name, param in model.named_parameters()
    }


def test_small_parameters_stay() -> None:
    model = net()
    found = residences(model, make(model, offload="stream"))
    assert found == {
        **dict.fromkeys(("first.weight", "second.weight", "table", "bare.weight", "unused"), 2),
        **dict.fromkeys(("first.bias", "norm.weight", "norm.bias", "second.bias"), 0),
    }
    model = net()
    found = residences(model, make(model, offload="host", min_offload_size=5000))
    assert [name for name, residence in found.items() if residence] == ["first.weight", "second.weight"]


def test_a_part_stays() -> None:
    """By a ratio or by bytes; the first parameters stay."""
    for options in ({"offload_ratio": 0.5}, {"gpu_state_budget": 2 * 4 * 48 * 130 + 2 * 4 * 130 * 65}):
        model = net()
        found = residences(model, make(model, offload="host", **options))
        away = [name for name, residence in found.items() if residence]
        assert 0 < len(away) < 5, options
        assert len(set(found.values())) == 2
    model = net()
    assert set(residences(model, make(model, offload="auto")).values()) == {0}  # on a CPU
    plain = net()
    assert set(residences(plain, make(plain, offload="stream", offload_ratio=0)).values()) == {0}


def test_a_budget_is_for_all_groups_together() -> None:
    one = 2 * 4 * 70 * 70
    params = [nn.Parameter(torch.ones(70, 70)) for _ in range(5)]
    small = [nn.Parameter(torch.ones(70)) for _ in range(2)]  # not of the budget

    def found(optimizer: Any) -> list[int]:
        optimizer._roster.update_members(optimizer.param_groups)
        return [optimizer._offload.residence(m) for m in optimizer._roster.members]

    options: dict[str, Any] = {"offload": "stream", "gpu_state_budget": 2 * one}
    optimizer = optim.AdamW([params[0], *small], **options)
    assert found(optimizer) == [0, 0, 0]
    for number in range(1, 5):
        optimizer.add_param_group({"params": [params[number]]})
        assert found(optimizer)[3:] == [0, 2, 2, 2][:number]
    assert found(optim.AdamW([params[0], *small, *params[1:]], **options)) == found(optimizer)


def test_frozen_parameters_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen_ones = [nn.Parameter(torch.ones(90, 90), requires_grad=False) for _ in range(3)]
    trained = nn.Parameter(torch.ones(70, 70))
    params = [*frozen_ones, trained]
    one, state = 2 * 4 * 90 * 90, 2 * 4 * 70 * 70

    def step(optimizer: Any) -> None:
        for param in params:
            param.grad = torch.ones_like(param) if param.requires_grad else None
        optimizer.step()

    optimizer = optim.AdamW(params, offload="stream")
    monkeypatch.setattr("octavo.optim.offload.host_memory.free_bytes", lambda: state + 1000)
    step(optimizer)
    assert optimizer.host_bytes() - optimizer._engine.host_bytes() == optimizer.state_bytes() == state
    for param in frozen_ones[:2]:
        param.requires_grad_()
    before = frozen(params)
    with pytest.raises(MemoryError, match="for 2 parameters"):
        step(optimizer)
    assert frozen(params) == before
    monkeypatch.undo()
    step(optimizer)
    assert optimizer.state_bytes() == state + 2 * one
    assert len({slab[0] for slab in optimizer._offload._slabs}) == 2  # those that came together lie together
    # A file may have states of frozen ones.
    saved = optimizer.state_dict()
    frozen_ones[0].requires_grad_(False)
    other = optim.AdamW(params, offload="stream")
    with monkeypatch.context() as context:
        left = [1000, state + one + 1000]
        context.setattr("octavo.optim.offload.host_memory.free_bytes", left.pop)
        with pytest.raises(MemoryError, match="for 1 parameters"):
            other.load_state_dict(saved)
        assert not other.state
    other.load_state_dict(saved)
    assert frozen(other.state_dict()["state"]) == frozen(saved["state"])


def test_states_lie_one_behind_the_other() -> None:
    model = net()
    optimizer = make(model, state="8bit", offload="stream")
    train(model, optimizer, 2)
    members = [m for m in optimizer._roster.members if optimizer._offload.is_offloaded(m) and m.entry]
    tensors = [t for m in members for k, t in m.state().plain().items() if k != "step"]
    begins = [t.data_ptr() for t in tensors]
    assert begins == sorted(begins)
    assert begins[-1] - begins[0] < optimizer.host_bytes() + 64 * len(tensors)
    assert all(at % 16 == 0 for at in begins)
    assert len({t.untyped_storage().data_ptr() for t in tensors}) == len(tensors)
    assert optimizer.host_bytes() > 0


def test_memory_is_freed_with_its_tensors() -> None:
    model = net()
    optimizer = make(model, offload="stream")
    train(model, optimizer, 1)
    kept = optimizer.state[model.table]["exp_avg"]
    alive = [slab[2] for slab in optimizer._offload._slabs]
    del optimizer
    gc.collect()
    assert all(slab() is not None for slab in alive)
    assert bool(kept.isfinite().all())
    del kept
    gc.collect()
    assert all(slab() is None for slab in alive)


def test_host_memory_that_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.optim.offload.host_memory.free_bytes", lambda: 100_000)
    model = net()
    optimizer = make(model, offload="stream")
    backward(model, 0)
    before = frozen(list(model.parameters()))
    with pytest.raises(
        MemoryError, match=r"needs 0\.00 GB .* and 0\.00 GB are free; state='8bit' takes 0.00 GB"
    ):
        optimizer.step()
    assert frozen(list(model.parameters())) == before
    assert optimizer.host_bytes() == 0
    monkeypatch.setattr("octavo.optim.offload.host_memory.free_bytes", lambda: 10)
    with pytest.raises(MemoryError, match="no format fits; offload_ratio="):
        optimizer.step()


# --- Loops ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("residence", AWAY)
def test_groups_and_schedulers(residence: str, taken: bool) -> None:
    def groups(model: Net) -> list[dict[str, Any]]:
        rest = [p for n, p in model.named_parameters() if not n.startswith("first")]
        return [{"params": model.first.parameters(), "lr": 3e-2, "state": "4bit"}, {"params": rest}]

    def run(**options: Any) -> Any:
        model = net()
        optimizer = optim.AdamW8bit(groups(model), lr=1e-2, clip_grad_norm=0.2, **options)
        if options:
            optimizer.attach(model)
        schedulers = [
            torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.1, 0.05], total_steps=10),
            torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        ]
        for scheduler in schedulers:
            train(model, optimizer, 3, scheduler=scheduler)
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(80, 80))], "lr": 0.5})
        added = optimizer.param_groups[-1]["params"][0]
        added.sum().backward()
        train(model, optimizer, 2)
        optimizer.wait()
        return bits(model, optimizer), frozen(added)

    assert run(offload=residence, offload_gradients=taken) == run()


def test_a_rate_in_a_tensor_may_be_written_at_once() -> None:
    """The step has its own, also when it is taken later."""

    def run(**options: Any) -> Any:
        model, rate = net(), torch.tensor(1e-2)
        optimizer = optim.AdamW(model.parameters(), lr=rate, **options)
        if options:
            optimizer.attach(model)
        for step in range(3):
            backward(model, step)
            optimizer.step()
            rate.fill_(1.0 / (step + 5))
            optimizer.zero_grad()
        return bits(model, optimizer)

    assert run(offload="host") == run(offload="stream") == run()


def test_parameters_without_a_gradient_are_left_alone() -> None:
    model = net()
    optimizer = make(model, offload="host", offload_gradients=True)
    train(model, optimizer, 2)
    assert optimizer.state_dict()["state"].keys() == set(range(9)) - {1}
    before = frozen(list(model.parameters()))
    optimizer.step()
    assert frozen(list(model.parameters())) == before


@pytest.mark.parametrize("residence", AWAY)
def test_gradients_set_by_hand(residence: str) -> None:
    """Beside those that hooks have taken, and instead of them."""

    def run(**options: Any) -> Any:
        model = net()
        optimizer = make(model, **options)
        for step in range(3):
            if step:
                backward(model, step)
            for param in model.parameters():
                param.grad = torch.ones_like(param) + (0 if param.grad is None else param.grad)
            optimizer.step()
            optimizer.zero_grad()
        return bits(model, optimizer)

    taken = run(offload=residence, offload_gradients=True)
    assert run(offload=residence) == run() == taken


def test_zero_grad_forgets_what_was_taken() -> None:
    for to_none in (True, False):
        model = net()
        optimizer = make(model, offload="host", offload_gradients=True)
        backward(model, 7)
        assert model.first.weight.grad is None  # taken
        assert model.first.bias.grad is not None  # too small
        optimizer.zero_grad(set_to_none=to_none)
        train(model, optimizer)
        assert bits(model, optimizer) == expected(torch.float32, 1)


@pytest.mark.parametrize("residence", AWAY)
def test_states_that_change_between_two_passes(residence: str) -> None:
    """Gradients that were taken stay, also where the next ones come one by one."""

    def load(model: nn.Module, optimizer: Any) -> None:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    def need_more(model: nn.Module, optimizer: Any) -> None:
        optimizer.param_groups[0]["amsgrad"] = True

    def unused_later(model: Any, optimizer: Any) -> None:
        load(model, optimizer)
        model.first.requires_grad_(False)  # nothing comes for it any more

    def run(change: Any, **options: Any) -> Any:
        model = net()
        optimizer = make(model, **options)
        train(model, optimizer, 1)
        backward(model, 7)
        change(model, optimizer)
        backward(model, 8)
        optimizer.step()
        return bits(model, optimizer)

    for change in (load, need_more, unused_later):
        assert run(change, offload=residence, offload_gradients=True) == run(change), change


def test_a_parameter_that_is_taken_out_leaves_nothing_behind() -> None:
    model = net()
    optimizer = make(model, offload="host", offload_gradients=True)
    backward(model, 0)
    assert optimizer._offload.host_grads
    optimizer.param_groups[0]["params"].remove(model.table)
    optimizer.step()
    assert not optimizer._offload.host_grads


class Grows(nn.Module):
    """`early`, whose gradient is the last one, is used from the third pass on."""

    def __init__(self) -> None:
        super().__init__()
        self.early, self.late, self.passes = nn.Linear(48, 90), nn.Linear(90, 70), 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.late(self.early(x) if self.passes > 2 else x.repeat(1, 2)[:, :90])


@pytest.mark.parametrize("options", [{"gradient_release": True}, {"offload_gradients": True}], ids=str)
def test_parameters_that_join_known_ones(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of gradients may be known by its first one, and have new ones behind it."""
    monkeypatch.setattr(hooks, "GATHERED_BYTES", 1 << 20)

    def run(**options: Any) -> Any:
        torch.manual_seed(0)
        model = Grows()
        optimizer = make(model, **options)
        train(model, optimizer, 4)
        return bits(model, optimizer)

    assert run(offload="stream", **options) == run()


@pytest.mark.parametrize("attach", [False, True])
@pytest.mark.parametrize("residence", AWAY)
def test_gradient_release(residence: str, attach: bool) -> None:
    for options in ({"state": "8bit"}, {"state": "4bit", "clip_grad_norm": 0.3, "skip_nonfinite": True}):
        model = net(torch.bfloat16)
        optimizer = make(model, offload=residence, gradient_release=True, **options)
        if attach:
            optimizer.attach(model)
        train(model, optimizer)
        plain = net(torch.bfloat16)
        released = make(plain, gradient_release=True, **options)
        train(plain, released)
        assert bits(model, optimizer) == bits(plain, released), options
        backward(model, 1)
        assert all(param.grad is None for param in model.parameters())
        with pytest.raises(RuntimeError, match="complete a second time"):
            backward(model, 2)


def test_nonfinite_gradients_skip_the_step() -> None:
    for residence, taken in itertools.product(AWAY, (False, True)):
        model = net()
        optimizer = make(model, offload=residence, offload_gradients=taken, skip_nonfinite=True)
        train(model, optimizer, 1)
        before = bits(model, optimizer)
        backward(model, 3, float("inf"))
        optimizer.step()
        assert optimizer.last_step_skipped()
        optimizer.zero_grad()
        assert bits(model, optimizer) == before


@pytest.mark.parametrize("smallest", [0, 4096])
@pytest.mark.parametrize("residence", AWAY)
def test_gradients_that_only_a_part_of_is_clipped(residence: str, smallest: int) -> None:
    """clip_grad_norm_ reaches those on the device alone."""
    model = net()
    optimizer = make(model, offload=residence, offload_gradients=True, min_offload_size=smallest)
    optimizer.attach(model)
    train(model, optimizer, 1)
    for number in range(2):
        for _ in range(2):
            backward(model, number)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        with pytest.raises(
            RuntimeError, match=r"its gradient was changed in place since the backward pass, but"
        ):
            optimizer.step()
        optimizer.zero_grad()
        train(model, optimizer, 1, passes=2)


def test_a_norm_of_a_part_of_the_gradients() -> None:
    """transformers' Trainer logs a norm so: with max_grad_norm=0 it clips by infinity."""
    model = net()
    optimizer = make(model, offload="host", offload_gradients=True)
    backward(model, 0)
    torch.nn.utils.clip_grad_norm_(model.parameters(), torch.inf)
    with pytest.warns(UserWarning, match="reached only the gradients on the device"):
        optimizer.step()
    backward(model, 1)
    torch.nn.utils.clip_grad_norm_(model.parameters(), torch.inf)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()


@pytest.mark.parametrize("residence", AWAY)
def test_the_gradient_that_stays_changes_no_bits(residence: str) -> None:
    """Where all parameters are offloaded, and also where the smallest is not used in some steps."""

    class Some(Net):
        def forward(self, x: Tensor) -> Tensor:
            self.passes = getattr(self, "passes", 0) + 1
            return super().forward(x) if self.passes % 3 else self.second(self.first(x))

    def run(given: Any, passes: int, **options: Any) -> Any:
        torch.manual_seed(0)
        model = given(torch.bfloat16)
        optimizer = make(model, state="8bit", min_quantized_size=0, **options)
        train(model, optimizer, 4, passes)
        return bits(model, optimizer)

    away = {"offload": residence, "offload_gradients": True, "min_offload_size": 0}
    for given, passes in itertools.product((Net, Some), (1, 2)):
        assert run(given, passes, **away) == run(given, passes)
    # A sum in bf16 would be 1.
    both = [nn.Parameter(torch.zeros(size, 70, dtype=torch.bfloat16)) for size in (90, 70)]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*: parameter")  # of updates that bf16 loses
        optimizer = optim.SGD(both, lr=1.0, momentum=0.9, accumulate_in_fp32=True, **away)
    for number in (1.0, *[2.0**-9] * 8):
        for param in both:
            (param * number).sum().backward()
    optimizer.step()
    assert all(bool((param == -1 - 2.0**-6).all()) for param in both)


# --- GradScaler -----------------------------------------------------------------------------------


def scaled(model: nn.Module, optimizer: Any, factors: tuple[float, ...] = (1.0, 1.0, 3e38, 1.0)) -> Any:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step, factor in enumerate(factors):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(8, 48, generator=generator)
        scaler.scale(model(x).square().mean() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return bits(model, optimizer), scaler.get_scale()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("residence", AWAY)
def test_grad_scaler(residence: str, fused: bool) -> None:
    plain = net()
    wanted = scaled(plain, make(plain, fused=fused, clip_grad_norm=0.5))
    assert wanted[1] == 512.0
    for attach in (False, True):
        model = net()
        optimizer = make(model, fused=fused, clip_grad_norm=0.5, offload=residence)
        if attach:
            optimizer.attach(model)
        assert scaled(model, optimizer) == wanted


@pytest.mark.parametrize("residence", AWAY)
def test_grad_scaler_and_taken_gradients(residence: str) -> None:
    plain, model = net(), net()
    wanted = scaled(plain, make(plain, fused=True))
    assert scaled(model, make(model, fused=True, offload=residence, offload_gradients=True)) == wanted
    for smallest in (0, 10**6):  # all of them taken but the witness
        model = net()
        options = {"offload": residence, "offload_gradients": True, "min_offload_size": smallest}
        assert scaled(model, make(model, fused=True, **options)) == wanted
    model = net()
    with pytest.raises(RuntimeError, match="GradScaler needs fused=True"):
        scaled(model, make(model, offload=residence, offload_gradients=True))
    model = net()
    optimizer = make(model, fused=True, offload=residence, offload_gradients=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(model(torch.ones(2, 48)).mean()).backward()
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match=r"unscale_\(\) cannot reach gradients"):
        scaler.step(optimizer)


class Sparse(Net):
    """The smallest parameter of all is never used, another small one only now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.smallest = nn.Parameter(torch.ones(()))
        self.empty = nn.Parameter(torch.ones(0))
        self.sometimes, self.passes = nn.Parameter(torch.ones(2)), 0

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        x = x + self.empty.sum()
        return super().forward(x) * (self.sometimes[0] if self.passes % 3 == 0 else 1)


@pytest.mark.parametrize("residence", AWAY)
def test_grad_scaler_where_small_parameters_are_not_used(residence: str) -> None:
    def run(passes: int, **options: Any) -> Any:
        torch.manual_seed(0)
        model = Sparse()
        optimizer = make(model, fused=True, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
        for step in range(6):
            for number in range(passes):
                x = torch.randn(8, 48, generator=torch.Generator().manual_seed(10 * step + number))
                x[0, 0] = torch.inf if (step, number) == (2, 0) else 1.0
                scaler.scale(model(x).square().mean()).backward()
            if options:
                here = [p for p in model.parameters() if p.grad is not None and p.numel()]
                assert len(here) == 1
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return bits(model, optimizer), scaler.get_scale()

    for passes in (1, 2):
        found = run(passes, offload=residence, offload_gradients=True, min_offload_size=0)
        assert found == run(passes)
        assert found[1] == 512.0


# --- Weights that somebody else writes ------------------------------------------------------------


def test_weights_that_are_written_between_steps() -> None:
    """The copies in host memory follow."""

    def run(write: Callable[[Net, Any], None], **options: Any) -> Any:
        model = net()
        optimizer = make(model, **options)
        train(model, optimizer, 2)
        write(model, optimizer)
        train(model, optimizer, 2, first=2)
        return bits(model, optimizer)

    def loads(model: Net, optimizer: Any) -> None:
        model.load_state_dict(net(seed=4).state_dict())

    def in_place(model: Net, optimizer: Any) -> None:
        with torch.no_grad():
            model.table.mul_(0.5)

    def by_data(model: Net, optimizer: Any) -> None:
        model.table.data.mul_(0.5)
        optimizer.sync_params()

    def moves(model: Net, optimizer: Any) -> None:
        model.table.data = model.table.data.clone() * 2

    for write in (loads, in_place, by_data, moves):
        assert run(write, offload="host") == run(write, offload="stream") == run(write), write


def test_shards_that_are_written_between_steps() -> None:
    """torch does not count a write to a shard as one to its DTensor."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))

        def placed(value: float) -> Tensor:
            return distribute_tensor(torch.full((70, 70), value), mesh, [Shard(0)])

        def run(write: Any, **options: Any) -> Any:
            param = nn.Parameter(placed(1.0))
            optimizer = optim.AdamW([param], lr=0.1, **options)
            for number in range(3):
                param.grad = placed(number + 1.0)
                optimizer.step()
                if number == 0:
                    with torch.no_grad():
                        write(param)
            return frozen(param.to_local())

        for write in (
            lambda p: p.to_local().fill_(5),
            lambda p: p._local_tensor.mul_(3),
            lambda p: p.mul_(2),
        ):
            assert run(write, offload="host") == run(write)
    finally:
        dist.destroy_process_group()


def test_weights_from_their_copies() -> None:
    model = net()
    optimizer = make(model, offload="host")
    train(model, optimizer, 2)
    before = frozen(model.table)
    model.table.data.zero_()
    optimizer.sync_params("to_device")
    optimizer.wait()
    assert frozen(model.table) == before
    with pytest.raises(ValueError, match="Invalid way: 'up', expected 'to_host' or 'to_device'"):
        optimizer.sync_params("up")
    make(model).sync_params()  # nothing to do


def test_memory_that_moves_while_its_gradient_is_away() -> None:
    model = net()
    optimizer = make(model, offload="host", offload_gradients=True)
    train(model, optimizer, 1)
    backward(model, 1)
    model.table.data = model.table.data.clone()
    with pytest.raises(RuntimeError, match="parameter 0 of group 0: its memory has moved since the backward"):
        optimizer.step()
    optimizer.zero_grad()
    train(model, optimizer, 1)


# --- Files ----------------------------------------------------------------------------------------


def in_host_memory(optimizer: Any, param: Tensor) -> bool:
    entry = optimizer.state[param]
    return all(optimizer._offload._is_in_slab(entry[key]) for key in entry if not key.endswith("step"))


@pytest.mark.parametrize("residence", AWAY)
def test_save_and_load(residence: str) -> None:
    """Between all residences, before a first step and after it; states stay where they were."""
    model = net(torch.bfloat16)
    options = {"state": "8bit", "master": 24}
    plain = make(model, **options)
    train(model, plain, 3)
    saved = {"model": model.state_dict(), "optimizer": plain.state_dict()}
    file = io.BytesIO()
    torch.save(saved, file)
    train(model, plain, 2, first=3)
    wanted = bits(model, plain)
    for trained in (0, 2):
        other = net(torch.bfloat16, seed=5)
        optimizer = make(other, **options, offload=residence)
        train(other, optimizer, trained)
        addresses = [entry["exp_avg"].data_ptr() for entry in optimizer.state.values()]
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        optimizer.load_state_dict(loaded["optimizer"])
        other.load_state_dict(loaded["model"])  # in any order
        assert in_host_memory(optimizer, other.table)
        assert not trained or addresses == [e["exp_avg"].data_ptr() for e in optimizer.state.values()]
        train(other, optimizer, 2, first=3)
        assert bits(other, optimizer) == wanted
        assert in_host_memory(optimizer, other.table)
        again = make(net(torch.bfloat16), **options)
        again.load_state_dict(optimizer.state_dict())
        assert frozen(again.state_dict()["state"]) == frozen(optimizer.state_dict()["state"])


def test_files_hold_no_more_than_their_tensors() -> None:
    model = net()
    optimizer = make(model, offload="stream")
    train(model, optimizer, 1)
    file = io.BytesIO()
    torch.save(optimizer.state_dict()["state"][0], file)
    assert file.tell() < 3 * 4 * model.table.numel()


def test_copies_and_pickles() -> None:
    model = net()
    optimizer = make(model, state="8bit", offload="host", gpu_state_budget=10_000)
    train(model, optimizer, 2)
    other, copied = copy.deepcopy((model, optimizer))
    pickled_model, pickled = pickle.loads(pickle.dumps((model, optimizer)))
    for one, its in ((model, optimizer), (other, copied), (pickled_model, pickled)):
        train(one, its, 2, first=2)
    assert bits(model, optimizer) == bits(other, copied) == bits(pickled_model, pickled)
    assert copied._offload_options == pickled._offload_options == optimizer._offload_options
    assert in_host_memory(copied, other.bare.weight)


def test_states_may_be_read_and_written() -> None:
    """At any time: reading waits for the queues."""

    def run(**options: Any) -> Any:
        model = net()
        optimizer = make(model, **options)
        steps = []
        for step in range(3):
            train(model, optimizer, 1, first=step)
            entry = optimizer.state[model.table]
            steps.append((int(entry["step"]), frozen(entry["exp_avg"])))
            entry["exp_avg"].mul_(0.5)
        optimizer.reset_state(model.bare.weight)
        train(model, optimizer, 1, first=3)
        return steps, bits(model, optimizer), frozen(optimizer.portable_state_dict()["state"])

    assert run(offload="host") == run(offload="stream") == run()


# --- Arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"offload": "cpu"}, "Invalid offload: 'cpu', expected 'none', 'host', 'stream' or 'auto'; 'host'"),
        ({"offload": 3}, "Invalid offload: 3"),
        ({"offload_gradients": True}, "offload_gradients=True needs offload='host'"),
        ({"gpu_state_budget": 5}, "gpu_state_budget=5 needs offload='host'"),
        ({"offload": "host", "offload_ratio": 1.5}, "Invalid offload_ratio: 1.5, expected a number from 0"),
        ({"offload": "host", "gpu_state_budget": -1}, "Invalid gpu_state_budget: -1, expected a number of"),
        ({"offload": "host", "gpu_state_budget": 1, "offload_ratio": 0.5}, "one of them decides"),
        ({"offload": "host", "min_offload_size": 0.5}, "Invalid min_offload_size: 0.5"),
        ({"offload": "host", "accumulate_in_fp32": True}, "accumulate_in_fp32=True needs offload_gradients"),
        ({"offload": "stream", "capturable": True}, "capturable=True and offload exclude each other"),
    ],
)
def test_arguments_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(net(), **options)


def test_arguments_as_text() -> None:
    """As transformers' optim_args passes them."""
    optimizer = make(net(), offload="stream", offload_ratio="0.5", min_offload_size="10")
    assert optimizer._offload_options == Options("stream", offload_ratio=0.5, min_offload_size=10)
    assert make(net(), offload="none")._offload is None


def test_a_group_cannot_be_capturable() -> None:
    optimizer = make(net(), offload="host")
    with pytest.raises(ValueError, match="a graph cannot hold host work"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))], "capturable": True})
    assert len(optimizer.param_groups) == 1


def test_an_exception_in_a_hook() -> None:
    """The step afterwards has the gradients that autograd has left, once each."""

    def run(**options: Any) -> Any:
        model = net()
        optimizer = make(model, **options)
        train(model, optimizer, 1)

        def fail(param: Tensor) -> None:
            raise ValueError("of a user's hook")

        hook = model.second.weight.register_post_accumulate_grad_hook(fail)
        with pytest.raises(ValueError, match="of a user's hook"):
            backward(model, 5)
        hook.remove()
        optimizer.zero_grad()
        train(model, optimizer, 2, first=1)
        return bits(model, optimizer)

    assert run(offload="host", offload_gradients=True) == run(offload="stream") == run()


class _Numbers(torch.utils.data.Dataset[int]):
    def __init__(self, used: Callable[[], None] | None = None) -> None:
        self._used = used

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        if self._used is not None:
            self._used()
        return index


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_data_loader_forks() -> None:
    """Its workers may end; a step in one is an error, and the parent goes on."""
    model = net()
    optimizer = make(model, offload="host", offload_gradients=True)
    optimizer.attach(model)
    for step in range(5):
        train(model, optimizer, 1, first=step)
        loader = torch.utils.data.DataLoader(_Numbers(), num_workers=1, multiprocessing_context="fork")
        assert len(list(loader)) == 2
    assert bits(model, optimizer) == expected(torch.float32, 1)
    used = torch.utils.data.DataLoader(
        _Numbers(lambda: train(model, optimizer, 1)), num_workers=1, multiprocessing_context="fork"
    )
    with pytest.raises(RuntimeError, match="engine: used in a forked process"):
        list(used)
    assert bits(model, optimizer) == expected(torch.float32, 1)
