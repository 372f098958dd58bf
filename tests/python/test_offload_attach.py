"""attach(): who waits for which weights, and when."""

from __future__ import annotations

import copy
import functools
import gc
import io
import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from models import frozen
from octavo import optim
from octavo._engine import WEIGHTS
from octavo.optim.offload import attach
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

SIZE = 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(SIZE, 2, batch_first=True)
        self.up = nn.Linear(SIZE, SIZE + 3)
        self.down = nn.Linear(SIZE + 3, SIZE)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.down(self.up(x).relu())


class Model(nn.Module):
    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(70, SIZE))
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(SIZE, 70, bias=False)
        self.again = again

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table[tokens]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.again else block(x)
        return self.head(x)


class Waits:
    """The names of the parameters that each call of the engine has waited for."""

    def __init__(self, model: nn.Module, optimizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[set[str]] = []
        names = {id(param): name for name, param in model.named_parameters()}
        engine, wait = optimizer._engine, optimizer._engine.wait

        def spied(handles: Any, what: int, device: torch.device) -> None:
            if what == WEIGHTS:
                by_handle = {m.handle: names.get(id(m.param), "?") for m in optimizer._roster.members}
                self.seen.append({"all"} if handles is None else {by_handle[handle] for handle in handles})
            wait(handles, what, device)

        monkeypatch.setattr(engine, "wait", spied)

    def taken(self) -> list[set[str]]:
        seen, self.seen = self.seen, []
        return seen


def build(again: bool = False, **options: Any) -> tuple[Model, Any]:
    torch.manual_seed(3)
    model = Model(again)
    return model, optim.AdamW8bit(model.parameters(), lr=1e-2, **{"offload": "stream", **options})


def step(model: Any, optimizer: Any, seed: int = 0) -> None:
    tokens = torch.randint(0, 70, (2, 5), generator=torch.Generator().manual_seed(seed))
    model(tokens).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def forward(model: Any) -> Tensor:
    return model(torch.arange(10).view(2, 5))


def plain(**options: Any) -> Any:
    model, optimizer = build(offload="none", **options)
    for number in range(4):
        step(model, optimizer, number)
    return frozen(list(model.parameters()))


# Projections of attention are used by their parent.
UNSEEN = {f"blocks.{i}.attention.out_proj.weight" for i in range(2)}
PASS = [
    {"table"},
    *(
        {f"blocks.{i}.{name}"}
        for i in range(2)
        for name in ("attention.in_proj_weight", "up.weight", "down.weight")
    ),
    {"head.weight"},
]


@pytest.fixture(autouse=True)
def _nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "AHEAD_BYTES", 0)


def test_a_module_waits_for_the_next_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = build()
    optimizer.attach(model)
    waits = Waits(model, optimizer, monkeypatch)
    step(model, optimizer, 0)
    step(model, optimizer, 1)  # the first pass with an order
    waits.taken()
    size = {name: param.nbytes for name, param in model.named_parameters()}
    first = [*PASS[0], *PASS[1], *PASS[2]]
    # The bias of a layer is too small to be offloaded.
    monkeypatch.setattr(attach, "AHEAD_BYTES", sum(size[name] for name in first))
    step(model, optimizer, 2)
    seen = waits.taken()
    assert seen[:2] == [UNSEEN, set(first)]
    assert set().union(*seen) == UNSEEN.union(*PASS)
    monkeypatch.setattr(attach, "AHEAD_BYTES", sum(size.values()))
    step(model, optimizer, 3)
    assert waits.taken() == [UNSEEN, set().union(*PASS)]
    optimizer.wait()
    assert frozen(list(model.parameters())) == plain()


def test_a_module_on_another_stream_follows_the_one_that_has_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = build()
    optimizer.attach(model)
    for number in range(2):
        step(model, optimizer, number)
    current, followed = [7], list[int]()
    monkeypatch.setattr(attach, "AHEAD_BYTES", 1 << 30)
    monkeypatch.setattr(attach, "stream_of", lambda device: current[0])
    monkeypatch.setattr(attach, "_follow", lambda device, stream: followed.append(stream))
    up = model.blocks[1].up
    up.register_forward_pre_hook(lambda *_: current.__setitem__(0, 8), prepend=True)  # before the gate
    up.register_forward_hook(lambda *_: current.__setitem__(0, 7))
    step(model, optimizer, 2)
    assert followed == [7]


@pytest.mark.parametrize("again", [False, True])
def test_modules_wait_for_their_own(again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = build(again)
    optimizer.attach(model)
    waits = Waits(model, optimizer, monkeypatch)
    step(model, optimizer, 0)
    assert waits.taken() == []
    assert all(param.grad is None for param in model.parameters())
    for number in range(1, 4):
        step(model, optimizer, number)
        assert waits.taken() == [UNSEEN, *PASS]
    optimizer.wait()
    assert frozen(list(model.parameters())) == plain()


def test_the_engine_is_told_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = build()
    # As they run, not as they are registered.
    model.blocks = nn.ModuleList([model.blocks[1], model.blocks[0]])
    told: list[Any] = []
    monkeypatch.setattr(optimizer._engine, "set_order", told.append)
    optimizer.attach(model)
    step(model, optimizer)
    step(model, optimizer)
    names = {id(param): name for name, param in model.named_parameters()}
    by_handle = {m.handle: names[id(m.param)] for m in optimizer._roster.members}
    assert len(told) == 1  # it has not changed
    order = [by_handle[handle] for handle in told[0]]
    assert set(order[:2]) == UNSEEN
    assert [{name} for name in order[2:]] == PASS


def test_every_other_use_waits_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = build()
    optimizer.attach(model)
    waits = Waits(model, optimizer, monkeypatch)

    def evaluates() -> None:
        model.eval()
        forward(model)
        model.train()

    def runs_without_gradients() -> None:
        with torch.no_grad():
            forward(model)

    uses = [evaluates, runs_without_gradients, model.state_dict]
    uses += [model.blocks[0].state_dict, lambda: model.load_state_dict(model.state_dict()), optimizer.wait]
    uses += [lambda: model.head.load_state_dict(copy.deepcopy(dict(model.head.named_parameters())))]
    for number, use in enumerate(uses):
        step(model, optimizer, number)
        waits.taken()
        use()
        assert waits.taken()[0] == {"all"}, number
        forward(model)
        assert waits.taken() == [], number  # nothing is left


def test_a_part_waits_for_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a pass of the model. A wait for all would hide that others were used before it."""
    model, optimizer = build()
    optimizer.attach(model)
    waits = Waits(model, optimizer, monkeypatch)
    block = {f"blocks.0.{name}" for name in ("attention.in_proj_weight", "attention.out_proj.weight")}
    block |= {"blocks.0.up.weight", "blocks.0.down.weight"}
    for use, wanted in (
        (lambda: model.blocks[0](torch.ones(1, 2, SIZE)), block),
        (lambda: model.head(torch.ones(1, SIZE)), {"head.weight"}),
        (lambda: model.head.weight, {"head.weight"}),
        (lambda: dict(model.named_parameters()), set()),
    ):
        step(model, optimizer)
        waits.taken()
        use()
        assert waits.taken() == [wanted] * bool(wanted)


@pytest.mark.parametrize("residence", ["host", "stream"])
@pytest.mark.parametrize("again", [False, True])
def test_a_forward_without_gates_has_the_last_weights(
    again: bool, residence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """model.forward(x), or a module's weight in a function, in some passes and not in others."""
    monkeypatch.setenv("OCTAVO_OFFLOAD_DELAYS", "1:3000")

    def run(**options: Any) -> Any:
        model, optimizer = build(again, **options)
        optimizer.attach(model)
        for number in range(6):
            tokens = torch.randint(0, 70, (2, 5), generator=torch.Generator().manual_seed(number))
            if number % 2:
                out = model.forward(tokens)
            else:
                hidden = nn.functional.linear(model.table[tokens], model.blocks[1].up.weight)
                out = model(tokens) + nn.functional.linear(hidden, model.blocks[1].up.weight.T).sum()
            out.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.wait()
        return frozen(list(model.parameters()))

    assert run(offload=residence) == run(offload="none")


class Captures(nn.Module):
    """Uses a parameter that it has not read from its module in this pass."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(70, 70), nn.Linear(70, 70, bias=False)
        self.weights = [self.b.weight]
        self.calls = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.b(x) if self.calls else nn.functional.linear(x, self.weights[0])


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("options", [{}, {"offload_gradients": True}, {"gradient_release": True}], ids=str)
def test_a_weight_that_nothing_has_waited_for(options: dict[str, Any], accumulate: bool) -> None:
    model = Captures()
    optimizer = optim.AdamW(model.named_parameters(), offload="host", **options)
    optimizer.attach(model)

    def train(calls: bool) -> None:
        model.calls = calls
        model(torch.ones(2, 70)).sum().backward()
        if accumulate and "gradient_release" not in options:
            model.calls = True
            model(torch.ones(2, 70)).sum().backward()  # waits, when it is too late
        optimizer.step()
        optimizer.zero_grad()

    train(True)
    with pytest.raises(
        RuntimeError, match=r"AdamW: parameter 'b.weight': has a gradient, but no forward pass"
    ):
        train(False)
    optimizer.zero_grad()
    optimizer.step()  # gradient_release: ends the step that has failed
    train(True)
    optimizer.wait()
    train(False)


def test_gradients_of_weights_that_were_not_used() -> None:
    """As DistributedDataParallel gives them to a rank whose pass has not used a module."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = nn.ModuleList([nn.Linear(70, 70, bias=False), nn.Linear(70, 70, bias=False)])
        model.forward = lambda x, both: model[1](model[0](x)) if both else model[0](x)
        optimizer = optim.AdamW(model.parameters(), offload="stream")
        optimizer.attach(model)
        for both in (True, False, False, True):
            model(torch.ones(2, 70), both).sum().backward()
            if not both:
                model[1]._parameters.get("weight").grad = torch.ones(70, 70)
            optimizer.step()
            optimizer.zero_grad()
        weight = model._modules["1"]._parameters.get("weight")
        model(torch.ones(2, 70), False)
        nn.functional.linear(torch.ones(2, 70), weight).sum().backward()
        with pytest.raises(RuntimeError, match="parameter 1 of group 0: has a gradient, but no forward pass"):
            optimizer.step()
    finally:
        dist.destroy_process_group()


def test_micro_batches_of_different_modules() -> None:
    """A module that runs in some passes, tied weights, and gradients of two passes."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = nn.Linear(70, 70), nn.Linear(70, 70)
            self.sometimes = nn.Linear(70, 70)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor, more: bool) -> Tensor:
            x = self.second(checkpoint(self.first, x, use_reentrant=False))
            return self.sometimes(x) if more else x

    def run(**options: Any) -> Any:
        model = Tied()
        optimizer = optim.AdamW(model.parameters(), **options)
        optimizer.attach(model)
        for passes in ((True, True), (False, True), (True, False), (False, False), (False, True)):
            for more in passes:
                model(torch.ones(2, 70), more).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.wait()
        return frozen(list(model.parameters()))

    for residence in ("host", "stream"):
        for taken in (False, True):
            assert run(offload=residence, offload_gradients=taken) == run()


def test_a_part_that_evaluates_waits_for_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's fast paths use the parameters of modules that they do not call."""
    model, optimizer = build()
    optimizer.attach(model)
    waits = Waits(model, optimizer, monkeypatch)
    step(model, optimizer)
    model.blocks[1].eval()
    forward(model)
    seen = waits.taken()
    assert {f"blocks.1.{n}.weight" for n in ("up", "down")} | {"blocks.1.attention.in_proj_weight"} in seen


def test_a_wait_that_fails_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = build()
    optimizer.attach(model)
    step(model, optimizer)
    away = optimizer._offload
    pending = dict(away.pending)

    def fail(*given: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as context:
        context.setattr(optimizer._engine, "wait", fail)
        with pytest.raises(MemoryError):
            away.wait_for([*pending, *pending])
    assert away.pending == pending
    away.wait_for([*pending, *pending])
    assert not away.pending


def test_modules_that_stopped_running(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step waits for what no forward has waited for."""
    model, optimizer = build()
    optimizer.attach(model)
    step(model, optimizer)
    waits = Waits(model, optimizer, monkeypatch)
    last = model.blocks[1]
    model.blocks = nn.ModuleList([model.blocks[0]])
    step(model, optimizer, 1)
    assert {"all"} in waits.taken()
    step(model, optimizer, 2)  # their parameters have no gradient now
    assert not any("blocks.1" in name for seen in waits.taken() for name in seen)
    assert last.up.weight.grad is None


def test_parameters_of_no_module_are_ready_after_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = build()
    extra = nn.Parameter(torch.ones(80, 80))
    optimizer.add_param_group({"params": [extra]})
    optimizer.attach(model)
    waits = Waits(model, optimizer, monkeypatch)
    extra.sum().backward()
    step(model, optimizer)
    assert waits.taken() == [{"?"}]


def test_hooks_that_read_weights_come_later() -> None:
    def run(**options: Any) -> Any:
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.utils.spectral_norm(nn.Linear(70, 80)),
            nn.utils.parametrizations.weight_norm(nn.Linear(80, 70)),
        )
        optimizer = optim.AdamW(model.parameters(), **options)
        optimizer.attach(model)
        for _ in range(4):
            model(torch.ones(2, 70)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        optimizer.wait()
        return frozen(list(model.parameters()))

    assert run(offload="host") == run(offload="stream") == run()


def test_two_models(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(70, 70), nn.Linear(70, 80)
    optimizer = optim.AdamW([*first.parameters(), *second.parameters()], offload="host")
    optimizer.attach(first)
    optimizer.attach(second)
    waits = Waits(nn.ModuleList([first, second]), optimizer, monkeypatch)
    for _ in range(2):
        second(first(torch.ones(2, 70))).sum().backward()
        optimizer.step()
    assert waits.taken() == [{"0.weight"}, {"1.weight"}]


@pytest.mark.parametrize("residence", ["host", "stream"])
def test_gradient_release_while_activations_are_made_again(residence: str) -> None:
    def run(**options: Any) -> Any:
        model, optimizer = build(True, gradient_release=True, **options)
        optimizer.attach(model)
        for number in range(4):
            step(model, optimizer, number)
        return frozen([list(model.parameters()), optimizer.state_dict()["state"]])

    assert run(offload=residence) == run(offload="none")


@pytest.mark.parametrize("inside", [False, True])
def test_data_parallel_waits_for_all(inside: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It copies weights to other devices before it calls a module."""
    model, optimizer = build()
    called = nn.Sequential(nn.DataParallel(model)) if inside else nn.DataParallel(model)
    optimizer.attach(called)
    waits = Waits(model, optimizer, monkeypatch)
    for number in range(4):
        step(called, optimizer, number)
        assert waits.taken() == [{"all"}][: min(number, 1)]
    optimizer.wait()
    assert frozen(list(model.parameters())) == plain()


def test_replicas_of_what_was_attached() -> None:
    """Their weights were copied already."""
    model, optimizer = build()
    optimizer.attach(model)
    step(model, optimizer)
    model.blocks[0]._is_replica = model._is_replica = True  # as nn.DataParallel marks them
    for part, given in ((model.eval(), torch.ones(1, 2).long()), (model.blocks[0], torch.ones(1, 2, SIZE))):
        with pytest.raises(RuntimeError, match="attach the DataParallel model itself"):
            part(given)
    optimizer.wait()
    forward(model)


def test_modules_that_take_turns_leave_nothing_behind() -> None:
    """Something is always pending, and what old steps have read is let go all the same."""

    class Turns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts, self.passes = nn.ModuleList(nn.Linear(70, 70) for _ in range(4)), -1

        def forward(self, x: Tensor) -> Tensor:
            self.passes += 1
            used = range(4) if self.passes == 0 else [self.passes % 4, (self.passes + 1) % 4]
            for number in used:
                x = self.parts[number](x)
            return x

    model = Turns()
    optimizer = optim.AdamW(model.parameters(), offload="stream", gradient_release=True)
    optimizer.attach(model)
    for _ in range(12):
        model(torch.ones(2, 70)).sum().backward()
        optimizer.step()
        away = optimizer._offload
        assert away.pending
        assert away._alive.keys() == away.pending.keys()
        kept = [each for alive in away._alive.values() for each in alive]
        assert not any(isinstance(each, list) for each in kept)  # nothing of the steps before


# --- torch.compile --------------------------------------------------------------------------------


def _compiled(model: Model, optimizer: Any) -> Any:
    compiled = torch.compile(model, backend="eager")
    optimizer.attach(compiled)
    return compiled


def _compiled_later(model: Model, optimizer: Any) -> Any:
    optimizer.attach(model)
    return torch.compile(model, backend="eager")


def _in_place(model: Model, optimizer: Any) -> Any:
    model.compile(backend="eager")
    optimizer.attach(model)
    return model


def _parts(model: Model, optimizer: Any) -> Any:
    optimizer.attach(model)
    for block in model.blocks:
        block.compile(backend="eager")
    return model


def _a_forward(model: Model, optimizer: Any) -> Any:
    optimizer.attach(model)
    model.blocks[1].forward = torch.compile(model.blocks[1].forward, backend="eager")
    return model


@pytest.mark.parametrize("way", [_compiled, _compiled_later, _in_place, _parts, _a_forward])
def test_compiled_models(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    model, optimizer = build(offload="host")
    waits = Waits(model, optimizer, monkeypatch)
    called = way(model, optimizer)
    everything = {m for seen in PASS for m in seen} | UNSEEN
    for number in range(4):
        step(called, optimizer, number)
        seen = waits.taken()
        assert number == 0 or {"all"} in seen or set().union(*seen) == everything
    optimizer.wait()
    assert frozen(list(model.parameters())) == plain()


class Noted(torch.autograd.Function):
    """Identity. Its backward pass calls `note`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, note: Any) -> Tensor:
        ctx.note = note
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.note()
        return grads[0], None


class Chain(nn.Module):
    """Blocks, with a look at their gradients between their backward passes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Chained() for _ in range(3))
        self.between = True
        self.noted: list[Any] = []
        for number, block in enumerate(self.blocks):
            for param in block.parameters():
                param.register_post_accumulate_grad_hook(lambda _, number=number: self.noted.append(number))

    def forward(self, x: Tensor) -> Tensor:
        for number, block in enumerate(self.blocks):
            x = block(Noted.apply(x, functools.partial(self.note, number)) if self.between else x)
        return x

    def note(self, number: int) -> None:
        # Biases are below min_offload_size: their gradients stay.
        away = all(p.grad is None for p in self.blocks[number].parameters() if p.dim() == 2)
        self.noted.append(f"block {number} done, gradients {'away' if away else 'here'}")


class Chained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(70, 80), nn.Linear(80, 70)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu())


def _graphs(node: Any, seen: set[Any]) -> int:
    """Compiled graphs in a graph of autograd."""
    if node is None or node in seen:
        return 0
    seen.add(node)
    own = type(node).__name__ == "CompiledFunctionBackward"
    return own + sum(_graphs(following, seen) for following, _ in node.next_functions)


def _train_chain(compiled: str, **options: Any) -> tuple[Any, list[Any], int]:
    """Weights after three steps, and what was noted of the last backward pass and its compiled graphs."""
    torch._dynamo.reset()
    model = Chain()
    optimizer = optim.AdamW8bit(model.parameters(), lr=1e-2, **options)
    if options:
        optimizer.attach(model)
    model.between = compiled == "blocks"
    for module in model.blocks if compiled == "blocks" else [model]:
        module.compile(backend="aot_eager")
    graphs = 0
    for number in range(3):
        model.noted.clear()
        loss = model(torch.full((2, 70), float(number), requires_grad=True)).square().sum()
        graphs = _graphs(loss.grad_fn, set())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if options:
        optimizer.wait()
    return frozen(list(model.parameters())), model.noted, graphs


@pytest.mark.parametrize("residence", ["host", "stream"])
def test_gradients_of_compiled_blocks_leave_one_block_after_the_other(
    residence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As docs/guides/offload.md advises. A graph of the complete model returns all gradients together."""
    monkeypatch.setattr("octavo.optim.hooks.GATHERED_BYTES", 4 * 70 * 80)  # bytes that leave together
    options = {"offload": residence, "offload_gradients": True}
    weights, noted, graphs = _train_chain("blocks", **options)
    assert graphs == 3
    assert [each for each in noted if isinstance(each, int)] == [2] * 4 + [1] * 4 + [0] * 4
    assert noted[4::5] == [f"block {number} done, gradients away" for number in (2, 1, 0)]
    assert weights == _train_chain("blocks")[0]
    weights, _, graphs = _train_chain("model", **options)
    assert graphs == 1
    assert weights == _train_chain("model")[0]


def test_attached_after_a_compiled_pass() -> None:
    """A graph does not see hooks that come later."""

    def run(compiled: bool, **options: Any) -> Any:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(70, 80), nn.Linear(80, 70))
        called: Any = torch.compile(model, backend="eager") if compiled else model
        called(torch.ones(2, 70)).sum().backward()
        optimizer = optim.AdamW(model.parameters(), **options)
        optimizer.attach(model)
        for number in range(3):
            loss = called(torch.full((2, 70), float(number))).square().sum()
            assert not compiled or not optimizer._offload.pending
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            assert not compiled or optimizer._offload.pending
        optimizer.wait()
        return frozen(list(model.parameters()))

    assert run(True, offload="host") == run(False)


def test_compiled_after_a_pass() -> None:
    """What was seen to run eagerly may be in a graph the next time."""
    torch._dynamo.reset()
    model, optimizer = build(offload="host")
    optimizer.attach(model)
    for number in range(4):
        if number == 2:
            for block in model.blocks:
                block.compile(backend="eager")
        step(model, optimizer, number)
    optimizer.wait()
    assert frozen(list(model.parameters())) == plain()


# --- Lives ----------------------------------------------------------------------------------------


def hooks_of(model: nn.Module) -> list[Any]:
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks")
    return [hook for module in model.modules() for kind in kinds for hook in getattr(module, kind).values()]


def test_copies_and_pickles_of_a_model() -> None:
    model, optimizer = build()
    optimizer.attach(model)
    step(model, optimizer)
    optimizer.wait()
    copied = copy.deepcopy(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    for other in (copied, loaded):
        assert frozen(list(other.parameters())) == frozen(list(model.parameters()))
        assert not any(isinstance(hook, attach._Hook) for hook in hooks_of(other))
        forward(other)
        other.load_state_dict(other.state_dict())


def test_hooks_end_with_their_optimizer() -> None:
    model, optimizer = build()
    optimizer.attach(model)
    step(model, optimizer)
    assert hooks_of(model)
    del optimizer
    gc.collect()
    assert not hooks_of(model)


def test_a_pass_that_fails() -> None:
    model, optimizer = build()
    optimizer.attach(model)
    for number in range(4):
        step(model, optimizer, number)
        with pytest.raises(IndexError):
            model(torch.tensor([[1000]]))
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            model.blocks[0].up(torch.ones(1, 1, 5))
    optimizer.wait()
    assert frozen(list(model.parameters())) == plain()


def test_what_cannot_be_attached() -> None:
    model, optimizer = build()
    with pytest.raises(TypeError, match=r"attach takes a torch\.nn\.Module, got generator"):
        optimizer.attach(model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, without = build(offload="none")
        without.attach(model)
        without.wait()
    assert not hooks_of(model)
