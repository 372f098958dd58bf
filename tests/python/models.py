"""What the tests of octavo.optim share: parameters and gradients from a seed, bytes of an optimizer to
compare, and a run beside torch.optim within the bound of rounding.py.

Values are drawn on the CPU and moved, so that every device sees the same ones. torch's optimizers run on the
CPU, one tensor at a time (foreach=False, fused=False): the loops that rounding.py bounds.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from octavo import optim
from rounding import Bound, Hyper, doubles, ratio
from torch import Tensor, nn
from torch.nn import Parameter

STATES = ("fp32", "bf16", "8bit", "4bit", "4bit-rank1", "fp8", "fp8-e5m2", "4bit/8bit", "fp4", "fp3")
BLOCKS = {"8bit": 256, "4bit": 128, "4bit-rank1": 128, "fp8": 256, "fp8-e5m2": 256, "fp4": 128, "fp3": 128}
SHAPES = ((40, 130), (4096,), (17,), (3, 5, 7))  # two to quantise (blocks that are not full), two not
MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")
TORCH = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
OURS = {"adam": optim.Adam, "adamw": optim.AdamW, "sgd": optim.SGD, "lion": optim.Lion}


def make_params(
    shapes: Sequence[Sequence[int]] = SHAPES,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> list[Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [Parameter(torch.randn(tuple(s), generator=generator).to(dtype).to(device)) for s in shapes]


def gradients(params: Sequence[Tensor], steps: int, seed: int = 1) -> list[list[Tensor]]:
    """Of every step: fp32 numbers on the CPU, each element at a scale of its own (1e-3 to 1)."""
    generator = torch.Generator().manual_seed(seed)
    scales = [10.0 ** (3 * torch.rand(p.shape, generator=generator) - 3) for p in params]
    return [[s * torch.randn(s.shape, generator=generator) for s in scales] for _ in range(steps)]


def set_grads(params: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
    """Gives each parameter a copy of its gradient, in its own dtype and on its device."""
    for param, grad in zip(params, grads, strict=True):
        param.grad = None if grad is None else grad.to(device=param.device, dtype=param.dtype, copy=True)


def train(
    optimizer: torch.optim.Optimizer, params: Sequence[Tensor], steps: Sequence[Sequence[Tensor | None]]
) -> None:
    for grads in steps:
        set_grads(params, grads)
        optimizer.step()


def all_params(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


# --- Bytes ----------------------------------------------------------------------------------------


def raw(tensor: Tensor) -> bytes:
    """The bytes of a tensor's elements, in the order of its indices."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes())


def frozen(value: Any) -> Any:
    """A value that is equal to another one only if everything in it is, tensors to the last bit."""
    if isinstance(value, Tensor):
        return ("tensor", str(value.dtype), tuple(value.shape), str(value.device), raw(value))
    if isinstance(value, Mapping):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [frozen(item) for item in value]
    return value


def snapshot(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Every byte of an optimizer's parameters, states and groups."""
    number = {id(p): i for i, p in enumerate(all_params(optimizer))}
    return {
        "params": [frozen(p) for p in all_params(optimizer)],
        "state": {number.get(id(key), key): frozen(entry) for key, entry in optimizer.state.items()},
        "groups": [
            {key: [id(p) for p in v] if key == "params" else frozen(v) for key, v in group.items()}
            for group in optimizer.param_groups
        ],
    }


def same_params(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    return len(a) == len(b) and all(
        x.dtype == y.dtype and x.shape == y.shape and raw(x) == raw(y) for x, y in zip(a, b, strict=True)
    )


def same_state(a: torch.optim.Optimizer, b: torch.optim.Optimizer) -> bool:
    """Whether the states of two optimizers are the same bytes, parameter by parameter."""
    return frozen(a.state_dict()["state"]) == frozen(b.state_dict()["state"])


def through_a_file(value: Any, path: Any, map_location: Any = None) -> Any:
    torch.save(value, path)
    return torch.load(path, weights_only=True, map_location=map_location)


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def saved_whole(value: Any) -> Any:
    """An object (not its state dict) through torch.save."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def moments_of(optimizer: Any) -> list[dict[str, Tensor]]:
    """The decoded moments of every parameter that has stepped."""
    states = optimizer.portable_state_dict()["state"]
    return [{name: entry[name] for name in MOMENTS if name in entry} for entry in states.values()]


# --- Beside torch ---------------------------------------------------------------------------------


def clones(params: Any) -> list[Parameter]:
    return [Parameter(p.detach().clone(memory_format=torch.preserve_format)) for p in params]


def trained(
    device: str, steps: int = 3, dtype: torch.dtype = torch.float32, name: str = "AdamW", **options: Any
) -> tuple[list[Parameter], Any]:
    """Parameters and an optimizer that has taken some steps on them."""
    params = make_params(device=device, dtype=dtype)
    optimizer = getattr(optim, name)(params, lr=1e-2, **options)
    train(optimizer, params, gradients(params, steps))
    return params, optimizer


NAMES = ("first", "second", "third", "fourth")


def trained_groups(
    device: str, named: bool = True, steps: int = 2, **options: Any
) -> tuple[list[Parameter], Any]:
    """The same with two groups, of parameters with names."""
    params = make_params(device=device)
    given: Any = list(zip(NAMES, params, strict=True)) if named else params
    optimizer = optim.AdamW([{"params": given[:2]}, {"params": given[2:], "lr": 0.5}], **options)
    train(optimizer, params, gradients(params, steps))
    return params, optimizer


@contextlib.contextmanager
def refused(optimizer: Any, error: type[Exception], message: str) -> Iterator[None]:
    """The body raises, and changes nothing."""
    before = snapshot(optimizer)
    with pytest.raises(error, match=message):
        yield
    assert snapshot(optimizer) == before


def small_model(device: str = "cpu") -> nn.Module:
    """An embedding, a block and a head, by names that patterns can tell apart."""
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(64, 64),
            "block": nn.ModuleDict({"proj": nn.Linear(64, 64), "norm": nn.LayerNorm(64)}),
            "head": nn.Linear(64, 64, bias=False),
        }
    )
    return model.to(device)


def hyper_of(algorithm: str, group: Mapping[str, Any]) -> Hyper:
    """The options of a group as they are now."""
    hyper = Hyper(
        lr=float(group["lr"]),
        weight_decay=float(group["weight_decay"]),
        maximize=bool(group["maximize"]),
        decoupled=algorithm == "adamw",
    )
    if algorithm == "sgd":
        names = ("momentum", "dampening", "nesterov")
        return dataclasses.replace(hyper, **{name: group[name] for name in names})
    betas = tuple(float(beta) for beta in group["betas"])
    return dataclasses.replace(hyper, betas=betas, eps=group["eps"], amsgrad=group["amsgrad"])


class Beside:
    """An optimizer of ours and torch's of the same name, on copies of the same parameters.

    Each step gives both the same gradients and asserts that no element of a parameter (or, of fp32 states, of
    a moment) is further apart than rounding allows two implementations of one formula to be.
    """

    def __init__(
        self, algorithm: str, params: Sequence[Parameter], groups: Any = None, ours: Any = None, **common: Any
    ) -> None:
        """`common` goes to both, `ours` to ours alone. `groups` are parameter groups whose "params" are
        indices of `params`.
        """
        self.algorithm = algorithm
        self.params = list(params)
        self.copies = [Parameter(p.detach().cpu().clone()) for p in params]
        asked: list[dict[str, Any]] = groups or [{"params": range(len(params))}]
        self.ours = OURS[algorithm](_groups(asked, self.params), **common, **(ours or {}))
        plain = {"foreach": False, "fused": False}
        self.theirs = TORCH[algorithm](_groups(asked, self.copies), **common, **plain)
        self.bounds = {id(p): Bound(Hyper()) for p in self.copies}
        self.worst = 0.0

    def add(self, params: Sequence[Parameter], **options: Any) -> None:
        """A further parameter group in both."""
        copies = [Parameter(p.detach().cpu().clone()) for p in params]
        self.ours.add_param_group({"params": list(params), **options})
        self.theirs.add_param_group({"params": list(copies), **options})
        self.params.extend(params)
        self.copies.extend(copies)
        self.bounds.update({id(p): Bound(Hyper()) for p in copies})

    def step(self, grads: Sequence[Tensor | None]) -> None:
        set_grads(self.params, grads)
        set_grads(self.copies, grads)
        before = {id(p): self._tensors(p) for p in self.copies}
        self.ours.step()
        self.advance(before)

    def advance(self, before: Mapping[int, tuple[Any, ...]]) -> None:
        """torch's half of a step, and the comparison."""
        first = {id(p): self.theirs.state[p].get("momentum_buffer") is None for p in self.copies}
        self.theirs.step()
        for group in self.theirs.param_groups:
            hyper = hyper_of(self.algorithm, group)
            for copy in group["params"]:
                if copy.grad is not None:
                    self._advance_bound(copy, hyper, before[id(copy)], first[id(copy)])
        self.check()

    def _advance_bound(self, copy: Parameter, hyper: Hyper, before: tuple[Any, ...], first: bool) -> None:
        bound = self.bounds[id(copy)]
        bound.hyper = hyper
        grad = doubles(copy.grad)
        if self.algorithm == "sgd":
            bound.sgd(1 if first else 2, grad, before, self._tensors(copy))
        else:
            bound.adam(int(self.theirs.state[copy]["step"]), grad, before, self._tensors(copy))

    def _tensors(self, copy: Parameter) -> tuple[Any, ...]:
        """The parameter and its moments in double; zeros where torch has not made them."""
        entry = self.theirs.state.get(copy, {})
        names = ("momentum_buffer",) if self.algorithm == "sgd" else MOMENTS[:3]
        moments = [entry[n] if entry.get(n) is not None else torch.zeros_like(copy) for n in names]
        return (doubles(copy.detach()), *map(doubles, moments))

    def check(self) -> None:
        for index, (param, copy) in enumerate(zip(self.params, self.copies, strict=True)):
            bound = self.bounds[id(copy)]
            apart = ratio(param.detach().cpu(), copy.detach(), bound.param)
            self.worst = max(self.worst, apart)
            assert apart <= 1.0, f"parameter {index} is {apart:.2f} times as far from torch's as it may be"
            entry, theirs = self.ours.state.get(param, {}), self.theirs.state.get(copy, {})
            for slot, name in enumerate(("momentum_buffer",) if self.algorithm == "sgd" else MOMENTS[:3]):
                if entry.get(name) is not None and entry[name].dtype == torch.float32:
                    apart = ratio(entry[name].cpu(), theirs[name], bound.moments[slot])
                    assert apart <= 1.0, f"{name} of parameter {index}: {apart:.2f} times the bound"

    def steps_taken(self) -> list[tuple[int, int]]:
        """Of each parameter, how many steps ours and torch's have counted."""
        return [
            (int(self.ours.state[p].get("step", 0)), int(self.theirs.state[c].get("step", 0)))
            for p, c in zip(self.params, self.copies, strict=True)
        ]


def _groups(asked: Sequence[Mapping[str, Any]], params: Sequence[Parameter]) -> list[dict[str, Any]]:
    return [{**group, "params": [params[i] for i in group["params"]]} for group in asked]


def count_calls(monkeypatch: Any) -> list[int]:
    """From now on, the number of tensors of each native step."""
    from octavo._engine import Engine

    calls: list[int] = []
    step = Engine.step

    def counted(self: Engine, args: Any) -> None:
        one_call = self.plan.cohorts == 1
        calls.extend([self.begun] if one_call else [-1] * self.plan.cohorts)  # how many in each nobody tells
        step(self, args)

    monkeypatch.setattr(Engine, "step", counted)
    return calls
