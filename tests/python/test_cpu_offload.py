"""CPUOffloadOptimizer around torch's optimizers: steps are those of the optimizer inside, whatever the loop
does. Around ours it is offload="host", which test_offload.py tests.
"""

from __future__ import annotations

import copy
import gc
import io
import weakref
from typing import Any

import clients
import pytest
import torch
from models import frozen
from octavo import optim
from octavo.optim import CPUOffloadOptimizer
from octavo.optim.offload_options import Options
from torch import Tensor, nn


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 70), nn.ReLU(), nn.Linear(70, 5))
    model[4].requires_grad_(False)
    return model


def backward(model: nn.Module, seed: int) -> None:
    x = torch.randn(8, 20, generator=torch.Generator().manual_seed(seed))
    (model(x).square().mean() * 10).backward()


def train(model: nn.Module, optimizer: Any, steps: int = 3, passes: int = 1, first: int = 0) -> None:
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    for step in range(first, first + steps):
        for number in range(passes):
            backward(model, 10 * step + number)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


def weights(model: nn.Module) -> Any:
    return frozen(list(model.parameters()))


MAKERS: dict[str, Any] = {
    "adamw": (torch.optim.AdamW, {"lr": 1e-2, "fused": True}),
    "sgd": (torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9}),
    "adagrad": (torch.optim.Adagrad, {}),
}


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_steps_are_those_of_the_optimizer_inside(name: str, passes: int, taken: bool) -> None:
    cls, options = MAKERS[name]
    model, other = net(), net()
    optimizer = CPUOffloadOptimizer(model.parameters(), cls, offload_gradients=taken, **options)
    plain = cls(other.parameters(), **options)
    train(model, optimizer, passes=passes)
    train(other, plain, passes=passes)
    assert weights(model) == weights(other)
    mine, its = optimizer.state_dict()["state"], plain.state_dict()["state"]
    assert list(mine) == [0, 1, 2, 3]  # the others are frozen
    assert frozen(mine) == frozen({number: its[number] for number in mine})
    assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
    assert len(optimizer.param_groups) == 1


def test_the_defaults_are_torchaos() -> None:
    optimizer = CPUOffloadOptimizer(net().parameters())
    assert optimizer.defaults["fused"] is True
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert CPUOffloadOptimizer(net().parameters(), fused=False).defaults["fused"] is False
    with pytest.raises(ValueError, match="empty parameter list"):
        CPUOffloadOptimizer([])


def test_gradients_are_freed() -> None:
    model = net()
    optimizer = CPUOffloadOptimizer(model.parameters(), offload_gradients=True)
    backward(model, 0)
    assert model[0].weight.grad is None
    assert list(optimizer._away) == [model[0].weight, model[2].weight]
    assert model[0].bias.grad is not None  # too small
    model = net()
    optimizer = CPUOffloadOptimizer(model.parameters(), offload_gradients=True, minimal_size=0)
    backward(model, 0)
    assert model[0].bias.grad is None
    assert model[0].weight in optimizer._away


def test_groups_that_change() -> None:
    def run(make: Any) -> Any:
        model = net()
        optimizer = make([{"params": model[0].parameters(), "lr": 0.1}, {"params": [model[2].weight]}])
        train(model, optimizer)
        optimizer.add_param_group({"params": [model[2].bias], "weight_decay": 0.5})
        model[4].requires_grad_(True)
        optimizer.add_param_group({"params": model[4].parameters(), "lr": 0.3})
        optimizer.param_groups[1]["betas"] = (0.5, 0.6)
        train(model, optimizer, first=3)
        return weights(model), frozen(optimizer.state_dict()["state"])

    away = run(lambda groups: CPUOffloadOptimizer(groups, lr=1e-2))
    assert away == run(lambda groups: torch.optim.AdamW(groups, lr=1e-2, fused=True))


def test_parameters_that_are_unfrozen() -> None:
    def run(make: Any) -> Any:
        model = net()
        model[2].requires_grad_(False)
        optimizer = make(model.parameters())
        train(model, optimizer)
        model[2].requires_grad_(True)
        train(model, optimizer, first=3)
        return weights(model)

    assert run(CPUOffloadOptimizer) == run(lambda params: torch.optim.AdamW(params, fused=True))


@pytest.mark.parametrize("taken", [False, True])
def test_clipping(taken: bool) -> None:
    model, other = net(), net()
    optimizer = CPUOffloadOptimizer(model.parameters(), offload_gradients=taken, clip_grad_norm=0.1)
    plain = torch.optim.AdamW(other.parameters(), fused=True)
    for step in range(4):
        backward(model, step)
        backward(other, step)
        norm = nn.utils.clip_grad_norm_(other.parameters(), 0.1)
        optimizer.step()
        plain.step()
        assert norm > 0.1
        torch.testing.assert_close(optimizer.grad_norm, norm)
        optimizer.zero_grad()
        plain.zero_grad()
    for mine, its in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, its)
    with pytest.raises(ValueError, match="Invalid clip_grad_norm: -1"):
        CPUOffloadOptimizer(net().parameters(), clip_grad_norm=-1)


def test_gradients_that_are_written_after_their_hooks() -> None:
    """By clip_grad_norm_, by GradScaler, by hand."""

    def run(make: Any) -> Any:
        model = net()
        optimizer, scaler = make(model.parameters()), torch.amp.GradScaler("cpu", init_scale=64.0)
        for step in range(3):
            x = torch.randn(8, 20, generator=torch.Generator().manual_seed(step))
            scaler.scale(model(x).square().mean()).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        for param in (p for p in model.parameters() if p.requires_grad):
            param.grad = torch.ones_like(param)
        optimizer.step()
        model.zero_grad()
        optimizer.step()  # without gradients
        return weights(model)

    plain = run(lambda params: torch.optim.AdamW(params, foreach=False, fused=False))
    assert run(lambda params: CPUOffloadOptimizer(params, foreach=False, fused=False)) == plain


def test_a_scaler_that_cannot_reach_the_gradients() -> None:
    model = net()
    optimizer = CPUOffloadOptimizer(model.parameters(), offload_gradients=True)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, 20)).sum()).backward()
    with pytest.raises(RuntimeError, match="GradScaler does not reach gradients"):
        scaler.step(optimizer)


def test_weights_that_somebody_writes() -> None:
    def run(make: Any) -> Any:
        model = net()
        optimizer = make(model.parameters())
        train(model, optimizer)
        model.load_state_dict(net(3).state_dict())
        train(model, optimizer, first=3)
        model[0].weight.data.mul_(0.5)
        if isinstance(optimizer, CPUOffloadOptimizer):
            optimizer.sync_params()
        train(model, optimizer, first=6)
        return model, optimizer

    (model, optimizer), (other, _) = (
        run(CPUOffloadOptimizer),
        run(lambda params: torch.optim.AdamW(params, fused=True)),
    )
    assert weights(model) == weights(other)
    model[0].weight.data.zero_()
    optimizer.sync_params("to_device")
    assert weights(model) == weights(other)
    with pytest.raises(ValueError, match="Invalid way: 'up'"):
        optimizer.sync_params("up")


@pytest.mark.parametrize("taken", [False, True])
def test_weights_that_get_other_memory(taken: bool) -> None:
    """`p.data = new` was undone by the next step."""

    def run(make: Any) -> Any:
        model = net()
        optimizer = make(model.parameters())
        train(model, optimizer)
        for param in model.parameters():
            param.data = param.data * 0.5 + 1
        train(model, optimizer, first=3)
        return weights(model)

    plain = run(lambda params: torch.optim.AdamW(params, fused=True))
    assert run(lambda params: CPUOffloadOptimizer(params, offload_gradients=taken)) == plain
    model = net()
    optimizer = CPUOffloadOptimizer(model.parameters())
    model[0].weight.data = torch.ones(300, 21)
    model[0].weight.grad = torch.ones(300, 21)
    with pytest.raises(RuntimeError, match=r"has shape \(300, 21\) now, expected \(300, 20\)"):
        optimizer.step()


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_deleted_groups_are_not_stepped(name: str, taken: bool) -> None:
    cls, options = MAKERS[name]

    def run(make: Any) -> Any:
        model = net()
        optimizer = make([{"params": [*layer.parameters()]} for layer in (model[0], model[2])])
        train(model, optimizer)
        del optimizer.param_groups[0]
        train(model, optimizer, first=3)
        model.zero_grad()  # torch's optimizers do not step what they no longer have, and neither clear it
        saved = frozen(optimizer.state_dict()["state"]) if make is not plain else None
        # Back in another group, with other options, and a parameter that has changed its group.
        optimizer.add_param_group({"params": [model[0].weight], "lr": 0.3})
        bias = optimizer.param_groups[0]["params"].pop()
        optimizer.param_groups[1]["params"].append(bias)
        train(model, optimizer, first=6)
        return weights(model), saved

    def plain(groups: Any) -> Any:
        return cls(groups, **options)

    found, saved = run(lambda groups: CPUOffloadOptimizer(groups, cls, offload_gradients=taken, **options))
    assert found == run(plain)[0]
    assert len(saved) == 2


def test_keys_that_an_optimizer_adds_to_its_groups() -> None:
    class Counts(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                group["count"] = group.get("count", 0) + 1
                for param in group["params"]:
                    param.data -= group["count"]

    def run(make: Any) -> Any:
        model = net()
        optimizer = make([{"params": [*layer.parameters()]} for layer in (model[0], model[2])])
        train(model, optimizer)
        del optimizer.param_groups[0]
        train(model, optimizer, first=3)
        return weights(model)

    assert run(lambda groups: CPUOffloadOptimizer(groups, Counts)) == run(Counts)


def test_a_bias_that_is_in_no_group_for_one_step() -> None:
    def run(make: Any) -> Any:
        model = net()
        optimizer = make([model[0].weight, model[0].bias, model[2].weight])
        train(model, optimizer)
        bias = optimizer.param_groups[0]["params"].pop(1)
        train(model, optimizer, steps=1, first=3)
        optimizer.param_groups[0]["params"].append(bias)
        train(model, optimizer, first=4)
        return weights(model)

    assert run(CPUOffloadOptimizer) == run(lambda params: torch.optim.AdamW(params, fused=True))


def test_a_tensor_instead_of_parameters() -> None:
    for tensor in (torch.zeros(()), torch.zeros(3)):
        with pytest.raises(TypeError, match="params argument given to the optimizer should be an iterable"):
            CPUOffloadOptimizer(tensor)


def test_muon_steps_matrices() -> None:
    """Its parameters have two dimensions, and so must that which the defaults are asked of."""

    def run(make: Any) -> Any:
        model = net()
        optimizer = make([model[0].weight, model[2].weight])
        train(model, optimizer)
        return weights(model)

    assert run(lambda params: CPUOffloadOptimizer(params, torch.optim.Muon)) == run(torch.optim.Muon)
    with pytest.raises(ValueError, match="only supports 2D parameters"):
        CPUOffloadOptimizer(net().parameters(), torch.optim.Muon)
    named = CPUOffloadOptimizer(
        ((n, p) for n, p in net().named_parameters() if p.dim() == 2), torch.optim.Muon
    )
    assert named.param_groups[0]["param_names"] == ["0.weight", "2.weight", "4.weight"]


def test_optimizers_that_need_a_closure_are_refused() -> None:
    with pytest.raises(TypeError, match="CPUOffloadOptimizer: LBFGS evaluates its closure several times"):
        CPUOffloadOptimizer(net().parameters(), torch.optim.LBFGS)


def graphs() -> int:
    """Graphs that torch.compile has made since the last reset."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


@pytest.fixture
def eager_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile captures graphs, and runs them without generated code."""
    compile = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda *args, **options: compile(*args, **{"backend": "eager", **options})
    )
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


class Sizes(nn.Module):
    """More parameters of different sizes than torch makes graphs of one function."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.all = nn.ParameterList(torch.randn(80 + i, 60) for i in range(12))
        self.small = nn.Parameter(torch.randn(7))

    def backward(self, step: int) -> None:
        generator = torch.Generator().manual_seed(step)
        for param in self.parameters():
            (param * torch.randn(param.shape, generator=generator)).sum().backward()


def train_sizes(make: Any) -> Any:
    model = Sizes()
    optimizer = make(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    for step in range(4):
        model.backward(step)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    return weights(model)


def test_a_compiled_update_is_one_graph_for_all_parameters(eager_graphs: None) -> None:
    """The class in docs/guides/offload.md."""
    kinds: list[Any] = []

    def offloaded(model: nn.Module) -> Any:
        scope = clients.run_guide("offload.md", 4, {"model": model})
        kinds.append(scope["SignMomentum"])
        assert len(scope["optimizer"]._away) == 12
        return scope["optimizer"]

    away = train_sizes(offloaded)
    made = graphs()
    assert 1 <= made <= 3  # one for all sizes, and one each for sizes and rates that torch specializes first
    assert away == train_sizes(lambda model: kinds[0](model.parameters(), lr=1e-4))


def test_a_compiled_step_is_a_graph_for_each_parameter(eager_graphs: None) -> None:
    """torch stops at its limit and runs the other steps uncompiled; the results do not depend on it."""

    def compiled(params: Any, **options: Any) -> Any:
        optimizer = torch.optim.SGD(params, momentum=0.9, **options)
        optimizer.step = torch.compile(optimizer.step)  # type: ignore[method-assign]
        return optimizer

    away = train_sizes(
        lambda model: CPUOffloadOptimizer(
            model.parameters(), lambda params, **options: compiled(params, **options), lr=1e-2
        )
    )
    assert graphs() == torch._dynamo.config.recompile_limit < 12
    assert away == train_sizes(lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9))


def saved_by(optimizer: torch.optim.Optimizer) -> Any:
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_save_and_load() -> None:
    """Between this class and the optimizer inside."""
    makers = [CPUOffloadOptimizer, lambda params: torch.optim.AdamW(params, fused=True)]
    model = net()
    optimizer = makers[0](model.parameters())
    train(model, optimizer)
    saved, start = saved_by(optimizer), copy.deepcopy(model.state_dict())
    train(model, optimizer, first=3)
    for first in makers:
        for second in makers:
            other = net()
            one = first(other.parameters())
            one.load_state_dict(saved)
            two = second(other.parameters())
            two.load_state_dict(saved_by(one))
            other.load_state_dict(start)  # after the optimizer was made
            train(other, two, first=3)
            assert weights(other) == weights(model)
    with pytest.raises(ValueError, match=r"groups of \[6\] parameters, expected \[4\]"):
        CPUOffloadOptimizer(nn.Sequential(*list(net())[:3]).parameters()).load_state_dict(saved)


def test_a_state_dict_of_torchao() -> None:
    model = net()
    optimizer = CPUOffloadOptimizer(model.parameters())
    train(model, optimizer)
    states = optimizer.state_dict()["state"]
    group = {**optimizer.param_groups[0], "params": [0]}
    theirs = {
        "offloaded": [{"state": {0: states[number]}, "param_groups": [group]} for number in (0, 2)],
        "on-device": {"state": {0: states[1], 1: states[3]}, "param_groups": [{**group, "params": [0, 1]}]},
    }
    theirs = copy.deepcopy(theirs)
    other = copy.deepcopy(model)
    again = CPUOffloadOptimizer(other.parameters())
    again.load_state_dict(theirs)
    train(model, optimizer, first=3)
    train(other, again, first=3)
    assert weights(model) == weights(other)
    with pytest.raises(ValueError, match="1 parameters on the CPU and 2 on the device, expected 2 and 2"):
        again.load_state_dict({**theirs, "offloaded": theirs["offloaded"][:1]})


def test_ours_are_native() -> None:
    model, other = net(), net()
    optimizer = CPUOffloadOptimizer(model.parameters(), optim.AdamW8bit, offload_gradients=True, lr=1e-2)
    assert type(optimizer) is optim.AdamW8bit
    assert optimizer._offload_options == Options("host", True)
    train(model, optimizer, passes=2)
    train(other, optim.AdamW8bit(other.parameters(), lr=1e-2), passes=2)
    assert weights(model) == weights(other)
    asked = CPUOffloadOptimizer(net().parameters(), optim.Lion, minimal_size=10, offload="stream")
    assert (asked._offload_options.offload, asked._offload_options.min_offload_size) == ("stream", 10)


def test_a_closure_and_copies() -> None:
    model = net()
    optimizer = CPUOffloadOptimizer(model.parameters())

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(torch.ones(2, 20)).sum()
        loss.backward()
        return loss

    before = weights(model)
    assert optimizer.step(closure).requires_grad
    assert weights(model) != before
    with pytest.raises(TypeError, match="save its state_dict"):
        copy.deepcopy(optimizer)


@pytest.mark.parametrize("taken", [False, True])
def test_hooks_end_with_their_optimizer(taken: bool) -> None:
    """A parameter that outlives its optimizer holds nothing of it, and has its gradients for others."""
    model = net()
    first = CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, offload_gradients=taken)
    train(model, first, 1)
    copies = weakref.ref(next(iter(first._away.values())))
    del first
    gc.collect()
    assert copies() is None
    second = CPUOffloadOptimizer(model.parameters(), torch.optim.AdamW, offload_gradients=taken)
    before = weights(model)
    train(model, second, 1)
    assert weights(model) != before
    del second
    gc.collect()
    backward(model, 0)
    assert all(param.grad is not None for param in model.parameters() if param.requires_grad)
