"""gradient_release: steps in the backward pass, the same bits as after it, with the gradients freed."""

from __future__ import annotations

import copy
import gc
import itertools
import threading
import time
from typing import Any

import pytest
import torch
from models import frozen, make_params, same_params
from octavo import optim
from octavo.optim import hooks
from octavo.optim.release import GradientRelease
from torch import Tensor, nn
from torch.amp import GradScaler


def network(device: str, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 80), nn.Tanh(), nn.Linear(80, 64), nn.Tanh(), nn.Linear(64, 3, bias=False)]
    return nn.Sequential(*layers).to(device=device, dtype=dtype)


def batch(turn: int, model: nn.Module) -> Tensor:
    weight = next(model.parameters())
    data = torch.randn(16, 64, generator=torch.Generator().manual_seed(turn))
    return data.to(weight.device, weight.dtype)


def loss_of(model: nn.Module, turn: int) -> Tensor:
    return model(batch(turn, model)).square().sum()


def run(model: nn.Module, optimizer: torch.optim.Optimizer, turns: int = 5) -> None:
    for turn in range(turns):
        optimizer.zero_grad()
        loss_of(model, turn).backward()
        optimizer.step()


def params_of(model: nn.Module) -> list[nn.Parameter]:
    return list(model.parameters())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"state": "8bit"},
        {"state": "4bit", "amsgrad": True},
        {"state": "8bit", "master": "stochastic", "seed": 3},
        {"state": "fp8", "master": 24},
        {"skip_nonfinite": True},
    ],
    ids=str,
)
def test_the_same_bits(options: dict[str, Any], device: str) -> None:
    dtype = torch.bfloat16 if "master" in options else torch.float32
    released, plain = network(device, dtype), network(device, dtype)
    ours = optim.AdamW(released.parameters(), lr=1e-2, gradient_release=True, **options)
    other = optim.AdamW(plain.parameters(), lr=1e-2, **options)
    run(released, ours)
    run(plain, other)
    assert same_params(params_of(released), params_of(plain))
    assert frozen(ours.state_dict()["state"]) == frozen(other.state_dict()["state"])


def test_gathered_gradients_of_another_set_each_time(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is stepped together differs from step to step where not every parameter has a gradient."""
    monkeypatch.setattr("octavo.optim.hooks.GATHERED_BYTES", 4 * 80 * 64)
    released, plain = network(device), network(device)
    ours = optim.AdamW8bit(released.parameters(), lr=1e-2, gradient_release=True)
    other = optim.AdamW8bit(plain.parameters(), lr=1e-2)
    for turn in range(6):
        for model in (released, plain):
            params_of(model)[2].requires_grad_(turn % 2 == 0)
            params_of(model)[0].requires_grad_(turn % 3 != 1)
        run(released, ours, 1)
        run(plain, other, 1)
    assert same_params(params_of(released), params_of(plain))
    assert frozen(ours.state_dict()["state"]) == frozen(other.state_dict()["state"])


def test_gradients_of_two_streams_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set that is used before the pass ends is read on the stream that has made all of it."""
    params = [torch.nn.Parameter(torch.ones(64)) for _ in range(6)]
    numbers = {id(param): number for number, param in enumerate(params)}
    optimizer = optim.AdamW(params, gradient_release=True)
    streams: list[int] = []
    monkeypatch.setattr(hooks, "GATHERED_BYTES", 2 * 4 * 64)
    monkeypatch.setattr(hooks, "stream_of", lambda device: len(streams) % 2)
    hook, used = GradientRelease.completed, []

    def completed(self: Any, optimizer: Any, group: Any, param: Any) -> None:
        hook(self, optimizer, group, param)
        streams.append(numbers[id(param)])

    use = GradientRelease.use

    def spied(self: Any, optimizer: Any, some: Any) -> None:
        used.append([numbers[id(param)] for param in some])
        use(self, optimizer, some)

    monkeypatch.setattr(GradientRelease, "completed", completed)
    monkeypatch.setattr(GradientRelease, "use", spied)
    torch.stack(params).sum().backward()
    optimizer.step()
    assert sorted(streams) == list(range(6))
    assert sorted(used) == sorted([streams[0:3:2], streams[1:4:2], streams[4:5], streams[5:6]])


@pytest.mark.parametrize("name", ["SGD", "Lion", "Adam"])
def test_the_other_algorithms(name: str, device: str) -> None:
    options: dict[str, Any] = {"momentum": 0.9} if name == "SGD" else {}
    released, plain = network(device), network(device)
    run(released, getattr(optim, name)(released.parameters(), gradient_release=True, **options))
    run(plain, getattr(optim, name)(plain.parameters(), **options))
    assert same_params(params_of(released), params_of(plain))


@pytest.mark.parametrize("most", [0, 1, 3], ids=["each at once", "one", "three"])
def test_gradients_are_freed_on_the_way(most: int, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a layer's turn comes, the layers behind it have given theirs back, up to a few that are gathered;
    and after the backward pass all have.
    """
    weight = 4 * 80 * 64
    monkeypatch.setattr("octavo.optim.hooks.GATHERED_BYTES", most * weight)
    model = network(device)
    optimizer = optim.AdamW8bit(model.parameters(), gradient_release=True)
    held: list[int] = []

    def count(*_: Any) -> None:
        held.append(sum(p.grad is not None for p in model.parameters()))

    for param in model.parameters():
        param.register_hook(count)
    before = [p.detach().clone() for p in model.parameters()]
    loss_of(model, 0).backward()
    assert len(held) == 5
    # Without gathering, the other one of the layer, where it is not stepped yet.
    assert max(held) <= (1 if most == 0 else 2 * most + 1)
    if most == 1:
        assert max(held) < 4  # the second layer's weight was enough
    assert all(p.grad is None for p in model.parameters())
    assert not any(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    after = [p.detach().clone() for p in model.parameters()]
    optimizer.step()  # there is nothing left to do
    assert same_params(params_of(model), after)


def test_clipping_by_the_norm_before(device: str) -> None:
    """The first step is not clipped, each other one by the norm of the step before it."""
    limit = 0.5
    released, plain = network(device), network(device)
    ours = optim.AdamW(released.parameters(), lr=1e-2, gradient_release=True, clip_grad_norm=limit)
    other = optim.AdamW(plain.parameters(), lr=1e-2)
    previous, factors = 0.0, []
    for turn in range(5):
        loss_of(released, turn).backward()
        ours.step()
        other.zero_grad()
        loss_of(plain, turn).backward()
        norm = float(torch.cat([p.grad.double().view(-1) for p in plain.parameters()]).norm())
        factor = torch.tensor(min(1.0, limit / (previous + 1e-6)), dtype=torch.float32)
        for p in plain.parameters():
            p.grad.mul_(factor.to(device))
        other.step()
        assert float(ours.grad_norm) == pytest.approx(norm, rel=1e-5)
        factors.append(float(factor))
        previous = norm
        # The norm is a double here and there, summed in another order: the factor is the same float but for
        # a last bit, the parameters but for an ulp or two.
        for p, q in zip(released.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)
            p.data.copy_(q.data)
    assert factors[0] == 1.0
    assert min(factors) < 1.0


def spoil(model: nn.Module, index: int) -> Any:
    """A hook that makes the gradient of one parameter infinite."""
    return params_of(model)[index].register_hook(lambda grad: torch.full_like(grad, float("inf")))


def test_the_guard_is_per_parameter(device: str) -> None:
    """A parameter with a bad gradient waits, the others have stepped; its count waits with it."""
    model, plain = network(device), network(device)
    optimizer = optim.AdamW8bit(model.parameters(), gradient_release=True, skip_nonfinite=True)
    other = optim.AdamW8bit(plain.parameters())
    run(model, optimizer, 1)
    run(plain, other, 1)
    assert not optimizer.last_step_skipped()
    handle = spoil(model, 2)
    before = frozen(params_of(model)[2])
    loss_of(model, 7).backward()
    optimizer.step()
    handle.remove()
    assert frozen(params_of(model)[2]) == before
    assert optimizer.last_step_skipped()
    other.zero_grad()
    loss_of(plain, 7).backward()
    params_of(plain)[2].grad = None
    other.step()
    assert same_params(params_of(model), params_of(plain))
    assert [int(optimizer.state[p]["step"]) for p in model.parameters()] == [2, 2, 1, 2, 2]
    loss_of(model, 8).backward()
    optimizer.step()
    assert not optimizer.last_step_skipped()


def test_a_bad_norm_is_not_clipped_by(device: str) -> None:
    """A step with an infinite gradient leaves the norm before it in use."""
    model = network(device)
    optimizer = optim.SGD(
        model.parameters(), lr=1.0, gradient_release=True, clip_grad_norm=0.5, skip_nonfinite=True
    )
    run(model, optimizer, 1)
    norm = float(optimizer.grad_norm)
    handle = spoil(model, 0)
    loss_of(model, 1).backward()
    optimizer.step()
    handle.remove()
    weight = params_of(model)[4]
    before, seen = weight.detach().clone(), []
    handle = weight.register_hook(lambda grad: seen.append(grad.clone()))
    loss_of(model, 2).backward()
    handle.remove()
    factor = min(1.0, 0.5 / (norm + 1e-6))
    torch.testing.assert_close(before - weight.detach(), seen[0] * factor, rtol=1e-4, atol=1e-6)


def test_a_scaler_is_refused(device: str) -> None:
    """It would unscale gradients that have been used."""
    model = network(device)
    optimizer = optim.AdamW(model.parameters(), gradient_release=True, fused=True)
    scaler = GradScaler(device, init_scale=8.0)
    scaler.scale(loss_of(model, 0)).backward()
    optimizer.grad_scale = optimizer.found_inf = torch.zeros((), device=device)  # as the scaler's step does
    with pytest.raises(RuntimeError, match="gradient_release steps during the backward pass, before Grad"):
        optimizer.step()
    plain = network(device)
    released = optim.AdamW(plain.parameters(), gradient_release=True)
    scaler.scale(loss_of(plain, 0)).backward()
    with pytest.raises((AssertionError, RuntimeError)):
        scaler.step(released)


def test_a_group_added_later(device: str) -> None:
    model, plain = network(device), network(device)
    ours = optim.AdamW(model[0].parameters(), gradient_release=True)
    other = optim.AdamW(plain[0].parameters())
    for optimizer, its in ((ours, model), (other, plain)):
        optimizer.add_param_group({"params": list(itertools.chain(its[2].parameters(), its[4].parameters()))})
    loss_of(model, 0).backward()
    assert all(p.grad is None for p in model.parameters())
    ours.step()
    loss_of(plain, 0).backward()
    other.step()
    other.zero_grad()
    run(model, ours, 3)
    run(plain, other, 3)
    assert same_params(params_of(model), params_of(plain))


def test_parameters_unfrozen_later(device: str) -> None:
    """Their first gradient waits for step(), which takes and frees it; the next ones are released."""
    model, plain = network(device), network(device)
    for its in (model, plain):
        its[0].requires_grad_(False)
    ours = optim.AdamW(model.parameters(), gradient_release=True, clip_grad_norm=1e6)
    other = optim.AdamW(plain.parameters(), clip_grad_norm=1e6)
    run(model, ours, 2)
    run(plain, other, 2)
    for its in (model, plain):
        its[0].requires_grad_(True)
    for turn in range(3):
        loss_of(model, turn).backward()  # without zero_grad: nothing may be left to zero
        assert (model[0].weight.grad is None) == (turn > 0)
        ours.step()
        assert all(p.grad is None for p in model.parameters())
        other.zero_grad()
        loss_of(plain, turn).backward()
        other.step()
        assert float(ours.grad_norm) == pytest.approx(float(other.grad_norm), rel=1e-6)
    assert same_params(params_of(model), params_of(plain))


@pytest.mark.parametrize("options", [{}, {"clip_grad_norm": 1.0}], ids=str)
def test_a_second_backward_pass_before_the_step_is_an_error(options: dict[str, Any], device: str) -> None:
    """Gradient accumulation would step with each part."""
    model = network(device)
    optimizer = optim.AdamW(model.named_parameters(), gradient_release=True, **options)
    run(model, optimizer, 2)
    loss_of(model, 2).backward()
    before = [p.detach().clone() for p in model.parameters()]
    said = (
        r"AdamW: parameter '4.weight': its gradient is complete a second time .*gradient_accumulation_steps=1"
    )
    with pytest.raises(RuntimeError, match=said):
        loss_of(model, 3).backward()
    assert same_params(params_of(model), before)
    assert {int(optimizer.state[p]["step"]) for p in model.parameters()} == {3}
    optimizer.step()
    loss_of(model, 3).backward()
    optimizer.load_state_dict(optimizer.state_dict())  # begins anew
    loss_of(model, 4).backward()


def test_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autograd has a thread per GPU, and each calls the hooks of its parameters."""
    models = [network("cpu"), network("cpu")]
    optimizer = optim.AdamW8bit([p for model in models for p in model.parameters()], gradient_release=True)
    plain = optimizer.step_params
    inside, most = [0], [0]

    def slowly(*args: Any) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        time.sleep(0.005)
        plain(*args)
        inside[0] -= 1

    monkeypatch.setattr(optimizer, "step_params", slowly)
    threads = [threading.Thread(target=loss_of(model, 0).backward) for model in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] == 1
    assert all(p.grad is None for model in models for p in model.parameters())


def test_backward_passes_of_two_models_at_the_same_time() -> None:
    """The second pass begins and ends while the first one has gathered a gradient."""
    models = [network("cpu"), network("cpu")]
    optimizer = optim.AdamW8bit([p for model in models for p in model.parameters()], gradient_release=True)
    failed: list[BaseException] = []

    def second() -> None:
        try:
            loss_of(models[1], 0).backward()
        except BaseException as error:
            failed.append(error)

    def hold(param: torch.Tensor) -> None:
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()

    hook = list(models[0].parameters())[-1].register_post_accumulate_grad_hook(hold)
    loss_of(models[0], 0).backward()
    hook.remove()
    assert not failed
    assert len(optimizer.state) == len([p for model in models for p in model.parameters()])
    assert all(p.grad is None for model in models for p in model.parameters())


def test_a_step_without_gradients_has_no_norm(device: str) -> None:
    for release in (True, False):
        model = network(device)
        options: dict[str, Any] = {"clip_grad_norm": 1.0, "skip_nonfinite": True, "gradient_release": release}
        optimizer = optim.AdamW(model.parameters(), **options)
        handle = spoil(model, 1)
        run(model, optimizer, 1)
        handle.remove()
        assert optimizer.last_step_skipped()
        assert optimizer.grad_norm is not None
        optimizer.zero_grad()
        optimizer.step()
        assert not optimizer.last_step_skipped()
        assert optimizer.grad_norm is None


def test_a_schedule_goes_by_step(device: str) -> None:
    model, plain = network(device), network(device)
    for its, release in ((model, True), (plain, False)):
        optimizer = optim.AdamW(its.parameters(), gradient_release=release)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for turn in range(4):
            optimizer.zero_grad()
            loss_of(its, turn).backward()
            optimizer.step()
            scheduler.step()
    assert same_params(params_of(model), params_of(plain))


def test_an_optimizer_that_is_gone_steps_no_more(device: str) -> None:
    model = network(device)
    optimizer = optim.AdamW(model.parameters(), gradient_release=True)
    run(model, optimizer, 1)
    del optimizer
    gc.collect()
    before = [p.detach().clone() for p in model.parameters()]
    loss_of(model, 1).backward()
    assert same_params(params_of(model), before)
    assert all(p.grad is not None for p in model.parameters())


def test_copies_release_their_own(device: str) -> None:
    model = network(device)
    optimizer = optim.AdamW8bit(model.parameters(), gradient_release=True)
    run(model, optimizer, 2)
    twin, theirs = copy.deepcopy((model, optimizer))
    loss_of(twin, 5).backward()
    assert all(p.grad is None for p in twin.parameters())
    assert not same_params(params_of(model), params_of(twin))
    theirs.step()
    loss_of(model, 5).backward()
    optimizer.step()
    assert same_params(params_of(model), params_of(twin))


def test_a_checkpoint_between_the_modes(device: str) -> None:
    model = network(device)
    optimizer = optim.AdamW8bit(model.parameters(), gradient_release=True)
    run(model, optimizer, 3)
    plain = copy.deepcopy(model)
    other = optim.AdamW8bit(plain.parameters())
    other.load_state_dict(optimizer.state_dict())
    optimizer.load_state_dict(optimizer.state_dict())
    run(model, optimizer, 2)
    run(plain, other, 2)
    assert same_params(params_of(model), params_of(plain))


def test_hooks_go_with_their_optimizer(device: str) -> None:
    params = make_params(device=device)
    optimizer = optim.AdamW8bit(params, gradient_release=True)
    del optimizer
    gc.collect()
    before = [p.detach().clone() for p in params]
    sum(p.square().sum() for p in params).backward()
    assert all(p.grad is not None for p in params)
    assert same_params(params, before)
    assert not any(p._post_accumulate_grad_hooks for p in params)
