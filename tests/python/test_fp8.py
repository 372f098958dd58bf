"""Tests octavo.fp8: matmuls and gradients against float64, scales against a loop, and the code around them.

The CPU computes in FP8 only for tests: OCTAVO_FP8_REFERENCE, which is set here.
"""

from __future__ import annotations

import copy
import io
import itertools
import math
import os
import warnings
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("OCTAVO_FP8_REFERENCE", "1")

import pytest
import torch
from octavo import OctavoError, _abi, fp8
from octavo.fp8 import choice_timing, devices, sites, steps
from octavo.fp8.layer_cache import DGRAD, DY, FORWARD, NONE, WGRAD, Kinds, Layer, Shape, cached_layer, only
from octavo.optim import AdamW8bit
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

RECIPES = ("delayed", "current", "rowwise", "block")
FORMATS = ("hybrid", "e4m3", "e5m2")
E4M3, E5M2 = 448.0, 57344.0


@pytest.fixture(autouse=True)
def _no_captured_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps.clock, "captured", False)


@pytest.fixture(autouse=True)
def _device_with_fp8(request: pytest.FixtureRequest) -> None:
    """A GPU may be there and not have FP8."""
    if "device" not in request.fixturenames or request.getfixturevalue("device") != "cuda":
        return
    if why := devices._why_not(torch.device("cuda", torch.cuda.current_device()), 0):
        pytest.skip(why)


def recipe(name: str = "delayed", **fields: Any) -> fp8.Recipe:
    return fp8.Recipe(**{"recipe": name, "select": "always", "amax_history_len": 4, **fields})


def made(*shape: int, device: str, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float32).to(device, dtype)


def parameter(*shape: int, device: str, dtype: torch.dtype = torch.bfloat16, seed: int = 1) -> nn.Parameter:
    return nn.Parameter(made(*shape, device=device, dtype=dtype, seed=seed))


def sqnr(got: Tensor, exact: Tensor) -> float:
    """Signal to noise in dB."""
    noise = (got.double() - exact).square().sum().item()
    return math.inf if noise == 0 else 10 * math.log10(exact.square().sum().item() / noise)


def exact_passes(x: Tensor, w: Tensor, dy: Tensor) -> list[Tensor]:
    x, w, dy = (each.detach().double() for each in (x, w, dy))
    return [x @ w, dy @ w.transpose(-1, -2), x.transpose(-1, -2) @ dy]


def run(x: Tensor, w: Tensor, dy: Tensor, chosen: fp8.Recipe, settle: bool = True) -> list[Tensor]:
    """y, dx, dw; with `settle` delayed scaling has seen these tensors before."""
    for _ in range(2 if settle and chosen.recipe == "delayed" else 1):
        x = x.detach().requires_grad_()
        y = fp8.matmul(x, w, chosen)
        dx, dw = torch.autograd.grad(y, (x, w), dy)
        fp8.end_step()
    return [y.detach(), dx, dw]


# --- Numbers ------------------------------------------------------------------------------------------


# A cast moves an element by an error that is even in half a unit of the last place: at most 2^-(m + 1) of
# it, with m the mantissa's bits, and of a power of at most 2^-2(m + 1) / 3. Errors of operands are
# independent, bf16's result adds 2^-18 / 3. One dB is left for what is not even.
def promised(mantissas: tuple[int, int]) -> float:
    power = sum(4.0 ** -(m + 1) / 3 for m in mantissas) + 2.0**-18 / 3
    return -10 * math.log10(power) - 1


MANTISSAS = {"hybrid": (3, 3, 2), "e4m3": (3, 3, 3), "e5m2": (2, 3, 2)}  # of x, w, dy


def gates(chosen: fp8.Recipe) -> list[float]:
    x, w, dy = MANTISSAS[chosen.format]
    x_of_wgrad = 3 if chosen.format == "e5m2" else x  # there is no matmul of two E5M2
    return [promised((x, w)), promised((dy, w)), promised((dy, x_of_wgrad))]


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("layout", ["inputs first", "outputs first"])
def test_random_tensors_keep_the_signal_that_formats_promise(
    device: str, name: str, format_: str, layout: str
) -> None:
    chosen = recipe(name, format=format_)
    x, dy = made(144, 160, device=device), made(144, 272, device=device, seed=2)
    first = layout == "inputs first"
    held = parameter(*((160, 272) if first else (272, 160)), device=device)
    w = held if first else held.t()
    results = run(x, w, dy, chosen)
    for got, exact, gate in zip(results, exact_passes(x, w, dy), gates(chosen), strict=True):
        assert got.dtype == torch.bfloat16
        assert got.shape == exact.shape
        assert sqnr(got, exact) >= gate


# With few outliers a tensor's own scale leaves small numbers few bits, and results that outliers make are
# right: the largest terms have the relative error of their elements.
@pytest.mark.parametrize("name", RECIPES)
def test_outliers_keep_most_of_the_signal(device: str, name: str) -> None:
    x, dy = made(144, 160, device=device), made(144, 272, device=device, seed=2)
    for each in (x, dy):
        chance = torch.rand(each.shape, generator=torch.Generator().manual_seed(5)).to(device)
        each[chance < 0.002] *= 4096
    w = parameter(160, 272, device=device)
    chosen = recipe(name)
    for got, exact, gate in zip(run(x, w, dy, chosen), exact_passes(x, w, dy), gates(chosen), strict=True):
        assert sqnr(got, exact) >= gate - 3  # few terms: their errors do not average out


@pytest.mark.parametrize("name", RECIPES)
def test_zeros_give_zeros(device: str, name: str) -> None:
    x, dy = torch.zeros(16, 32, device=device), torch.zeros(16, 48, device=device)
    for got in run(x, nn.Parameter(torch.zeros(32, 48, device=device)), dy, recipe(name)):
        assert not got.any()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("where", ["x", "dy"])
@pytest.mark.parametrize("name", RECIPES)
def test_what_is_not_finite_reaches_results(device: str, name: str, where: str, bad: float) -> None:
    x, dy = made(32, 32, device=device), made(32, 32, device=device, seed=2)
    w = parameter(32, 32, device=device)
    (x if where == "x" else dy)[5, 6] = bad
    y, dx, dw = run(x, w, dy, recipe(name), settle=False)
    if where == "x":
        assert not y[5].isfinite().any()
        assert not dw[6].isfinite().any()
    else:
        assert not dx[5].isfinite().any()
        assert not dw[:, 6].isfinite().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_results_have_the_dtypes_of_their_tensors(device: str, dtype: torch.dtype) -> None:
    x = made(32, 32, device=device, dtype=dtype).requires_grad_()
    w = parameter(32, 48, device=device, dtype=torch.float32)
    y = fp8.matmul(x, w, recipe("current"))
    y.float().sum().backward()
    assert (y.dtype, x.grad.dtype, w.grad.dtype) == (dtype, dtype, torch.float32)


def test_under_torch_autocast(device: str) -> None:
    x = made(32, 32, device=device, dtype=torch.float32).requires_grad_()
    w = parameter(32, 48, device=device, dtype=torch.float32)
    with torch.autocast(device, dtype=torch.bfloat16):
        y = fp8.matmul(x, w, recipe("current"))
        odd = fp8.matmul(x[:, :9], w[:9], recipe("current"))
    y.sum().backward()
    assert (y.dtype, odd.dtype) == (torch.bfloat16, torch.bfloat16)
    assert (x.grad.dtype, w.grad.dtype) == (torch.float32, torch.float32)
    assert sqnr(y, x.detach().double() @ w.detach().double()) >= gates(recipe())[0]


# --- Shapes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sum_groups", [False, True])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shape", [(3, 32, 48), (32, 48), (1, 32, 48), (2, 1, 16, 48), (2, 3, 16, 48)])
def test_groups(device: str, shape: tuple[int, ...], turned: bool, sum_groups: bool) -> None:
    x = made(*shape, device=device, dtype=torch.float32).requires_grad_()
    held = parameter(*((3, 64, 48) if turned else (3, 48, 64)), device=device, dtype=torch.float32)
    w = held.transpose(1, 2) if turned else held
    y = fp8.matmul(x, w, recipe("current"), sum_groups=sum_groups)
    exact = torch.matmul(x.double(), w.double())
    exact = exact.sum(-3) if sum_groups else exact
    dy = made(*exact.shape, device=device, dtype=torch.float32, seed=3)
    grads = torch.autograd.grad(y, (x, held), dy)
    expected = torch.autograd.grad(exact, (x, held), dy.double())
    assert y.shape == exact.shape
    for got, want, gate in zip((y, *grads), (exact, *expected), gates(recipe()), strict=True):
        assert got.shape == want.shape
        assert sqnr(got, want.double()) >= gate


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 37])
def test_tokens_are_filled_up(device: str, tokens: int) -> None:
    layer = fp8.Linear(48, 32, device=device, dtype=torch.bfloat16, recipe=recipe("rowwise"))
    x, dy = made(tokens, 48, device=device), made(tokens, 32, device=device, seed=2)
    whole_x, whole_dy = (
        torch.cat([each, torch.zeros(48 - tokens, each.shape[1], device=device, dtype=each.dtype)])
        for each in (x, dy)
    )
    results = []
    for rows, up in ((x, dy), (whole_x, whole_dy)):
        rows = rows.clone().requires_grad_()
        y = layer(rows)
        y.relu_().add_(1)  # results may be written in place
        y = layer(rows)
        results.append([y, *torch.autograd.grad(y, (rows, layer.weight, layer.bias), up)])
    for short, long in zip(*results, strict=True):
        # On a GPU another shape may sum in another order.
        torch.testing.assert_close(short, long[: len(short)] if short.shape != long.shape else long)


@pytest.mark.parametrize("shape", [(0, 32), (2, 0, 32)])
def test_nothing_to_multiply(device: str, shape: tuple[int, ...]) -> None:
    layer = fp8.Linear(32, 16, device=device, dtype=torch.bfloat16, recipe=recipe())
    x = torch.empty(shape, device=device, dtype=torch.bfloat16, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.shape == (*shape[:-1], 16)
    assert not layer.weight.grad.any()


def test_strided_inputs_are_those_of_dense_ones(device: str) -> None:
    w, wide = parameter(32, 48, device=device), made(64, 64, device=device)
    x = wide[::2, ::2].requires_grad_()
    dy = made(1, 1, device=device).expand(32, 48)
    got = run(x, w, dy, recipe("current"))
    dense = run(x.detach().contiguous(), w, dy.contiguous(), recipe("current"))
    scattered = parameter(48, 64, device=device)[:, ::2].t()  # dense in no order
    assert fp8.matmul(x, scattered, recipe("current")).equal(
        fp8.matmul(x, scattered.contiguous(), recipe("current"))
    )
    for one, other in zip(got, dense, strict=True):
        assert one.equal(other)


def test_sizes_that_fp8_does_not_take_stay_plain_and_are_named(device: str) -> None:
    devices._said.clear()
    w = parameter(30, 48, device=device, dtype=torch.float32)
    x = made(8, 30, device=device, dtype=torch.float32)
    with pytest.warns(UserWarning, match="30 x 48 stays as it is: inputs: got 30, expected a multiple of 16"):
        y = fp8.matmul(x, w, recipe())
    assert y.equal(x @ w)
    groups = parameter(2, 32, 48, device=device)
    with pytest.warns(UserWarning, match="tokens: got 5 in each of 2 groups"):
        fp8.matmul(made(2, 5, 32, device=device), groups, recipe())


def test_only_gradients_that_are_asked_for(device: str) -> None:
    x, w = made(32, 32, device=device), parameter(32, 48, device=device)
    y = fp8.matmul(x, w, recipe("current"))
    y.sum().backward()
    assert x.grad is None
    frozen = w.detach()
    x.requires_grad_()
    y = fp8.matmul(x, frozen, recipe("current"))
    y.sum().backward()
    assert x.grad is not None
    with torch.no_grad():
        assert not fp8.matmul(x, w, recipe("current")).requires_grad


def test_a_second_derivative_is_refused(device: str) -> None:
    x, w = made(16, 16, device=device).requires_grad_(), parameter(16, 16, device=device)
    y = fp8.matmul(x, w, recipe("current"))
    (dx,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="matmuls in FP8 have no second derivatives"):
        dx.sum().backward()


def test_a_second_derivative_is_refused_in_the_last_layer(device: str) -> None:
    """There the gradient of the result needs no gradient. The penalty on dx had none, silently."""
    layer = fp8.Linear(32, 16, device=device, dtype=torch.bfloat16, recipe=recipe("current"))
    trunk = nn.Linear(32, 32, device=device, dtype=torch.bfloat16)
    x = made(16, 32, device=device).requires_grad_()
    for model in (layer, nn.Sequential(trunk, layer)):
        (dx,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        penalty = (dx.norm(dim=-1) - 1).square().mean()
        assert penalty.requires_grad
        with pytest.raises(RuntimeError, match="matmuls in FP8 have no second derivatives"):
            penalty.backward()


def test_a_graph_of_gradients_that_is_not_used_changes_nothing(device: str) -> None:
    layer = fp8.Linear(32, 16, device=device, dtype=torch.bfloat16, recipe=recipe("current"))
    x, found = made(16, 32, device=device).requires_grad_(), []
    for create_graph in (False, True):
        inputs = (x, layer.weight, layer.bias)
        found.append(torch.autograd.grad(layer(x).sum(), inputs, create_graph=create_graph))
    assert all(map(torch.equal, *found))


# --- Passes that stay torch's --------------------------------------------------------------------------


@pytest.mark.parametrize("passes", range(8))
@pytest.mark.parametrize("kind", ["linear", "matmul", "groups", "one input", "one output", "one group"])
def test_every_choice_of_passes(device: str, kind: str, passes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """`select: measure` may choose each of them."""
    prepare, chosen = fp8.matmul.__globals__["_prepare"], recipe("current")

    def choose(x: Tensor, w: Tensor, given: Any, site: Any, use: Any) -> Any:
        made = prepare(x, w, given, site, use)
        layer = made.layer
        return made._replace(
            layer=cached_layer(layer.kinds, layer.numbers, layer.shape, passes) if passes else None
        )

    monkeypatch.setitem(fp8.matmul.__globals__, "_prepare", choose)
    shape = (3, 32, 48) if kind in ("groups", "one output") else (32, 48)
    x = made(*shape, device=device, dtype=torch.float32).requires_grad_()
    if kind == "linear":
        layer = fp8.Linear(48, 64, device=device, recipe=chosen)
        leaves, y = (x, layer.weight, layer.bias), layer(x)
        exact = x.double() @ layer.weight.double().t() + layer.bias.double()
    else:
        groups = {"matmul": (), "one group": (1,)}.get(kind, (3,))
        w = parameter(*groups, 48, 64, device=device, dtype=torch.float32)
        one_output = kind in ("one output", "one group")
        leaves, y = (x, w), fp8.matmul(x, w, chosen, sum_groups=one_output)
        exact = torch.matmul(x.double(), w.double())
        exact = exact.sum(0) if one_output else exact
    if kind in ("linear", "matmul"):
        assert not y._is_view()  # results may be written in place
    dy = made(*exact.shape, device=device, dtype=torch.float32, seed=3)
    results = [y, *torch.autograd.grad(y, leaves, dy)]
    expected = [exact, *torch.autograd.grad(exact, leaves, dy.double())]
    for number, (got, want) in enumerate(zip(results, expected, strict=True)):
        in_fp8 = number < 3 and passes >> number & 1
        assert got.shape == want.shape
        assert sqnr(got, want.double()) >= (gates(chosen)[number] if in_fp8 else 60)
        if in_fp8:
            assert sqnr(got, want.double()) < 50


# --- Delayed scaling ----------------------------------------------------------------------------------


class PlainDelayed:
    """A tensor's scales and history, as Transformer Engine's kernel has them."""

    def __init__(self, length: int, algo: str, margin: int) -> None:
        self.history, self.algo, self.margin = [0.0] * length, algo, margin
        self.scales = [1.0, 1.0]

    def see(self, tensor: Tensor) -> None:
        self.history[0] = max(self.history[0], tensor.detach().abs().max().item())

    def end(self) -> None:
        if self.history[0] == 0:
            return
        amax = max(self.history) if self.algo == "max" else self.history[0]
        self.history = [*self.history[1:], self.history[0]]
        self.history[0] = 0.0
        for i, largest in enumerate((E4M3, E5M2)):
            wanted = torch.tensor(largest * 2.0**-self.margin) / torch.tensor(amax)
            self.scales[i] = wanted.item()


@pytest.mark.parametrize("algo", ["max", "most_recent"])
@pytest.mark.parametrize("margin", [0, 2])
def test_histories_and_scales_are_those_of_a_loop(device: str, algo: str, margin: int) -> None:
    length = 3
    chosen = recipe(amax_history_len=length, amax_compute_algo=algo, margin=margin)
    w = parameter(32, 48, device=device)
    own = [PlainDelayed(length, algo, margin) for _ in range(3)]
    optimizer = torch.optim.SGD([w], lr=0.1)
    for step in range(12):
        for micro in range(2):  # gathered together
            scale = 1 + (7 * step + 3 * micro) % 5
            x = (scale * made(32, 32, device=device, seed=step)).requires_grad_()
            dy = scale * made(32, 48, device=device, seed=50 + step)
            fp8.matmul(x, w, chosen).backward(dy)
            for state, tensor in zip(own, (x, w, dy), strict=True):
                state.see(tensor)
        optimizer.step()
        optimizer.zero_grad()
        for state in own:
            state.end()
        states = sites.find(w).states
        for found, state in zip(states, own, strict=True):
            assert found[:2].tolist() == pytest.approx(state.scales, rel=1e-7)
            if length > 1:
                assert sorted(found[2:].tolist()) == sorted(state.history)
                assert found[2] == 0


def test_weights_are_cast_once_per_step(device: str) -> None:
    w = parameter(32, 48, device=device)
    optimizer = torch.optim.SGD([w], lr=0.1)
    for step in range(3):
        for micro in range(4):
            x = made(32, 32, device=device, seed=micro).requires_grad_()
            fp8.matmul(x, w, recipe()).sum().backward()
        assert sites.find(w).casts == step + 1
        optimizer.step()
    with torch.no_grad():
        w.mul_(2)  # torch counts this
    before = sites.find(w).casts
    fp8.matmul(x, w, recipe())
    assert sites.find(w).casts == before + 1


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ["delayed", "block"])
def test_checkpointing_changes_no_bit(device: str, name: str, reentrant: bool) -> None:
    def train(recompute: bool) -> tuple[list[Tensor], list[int]]:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).to(device, torch.bfloat16)
        fp8.convert(layers)
        optimizer = torch.optim.SGD(layers.parameters(), lr=0.05)
        for step in range(4):
            x = made(32, 32, device=device, seed=step).requires_grad_()
            with fp8.autocast(recipe=recipe(name)):
                y = checkpoint(layers, x, use_reentrant=reentrant) if recompute else layers(x)
            y.square().mean().backward()  # the forward is made once more outside of autocast
            optimizer.step()
            optimizer.zero_grad()
        tensors = [*layers.state_dict().values(), x.grad]
        return tensors, [layers[0].fp8_site.casts, layers[2].fp8_site.casts]

    plain, casts = train(False)
    recomputed, casts_again = train(True)
    # The first forward of the reentrant kind is without gradients, and has no use for turned codes.
    assert (casts, casts_again) == ([4, 4], [8, 8] if reentrant else [4, 4])
    for one, other in zip(plain, recomputed, strict=True):
        assert one.equal(other)


def test_evaluation_leaves_the_history_of_activations(device: str) -> None:
    layer = fp8.Linear(32, 32, device=device, dtype=torch.bfloat16, recipe=recipe())
    x = made(32, 32, device=device)
    with torch.no_grad():
        layer(100 * x)
    layer(x)
    assert layer.fp8_site.states[0, 2] == x.abs().max()


def test_an_infinite_maximum_is_not_kept(device: str) -> None:
    layer = fp8.Linear(32, 32, device=device, dtype=torch.bfloat16, recipe=recipe())
    x = made(32, 32, device=device)
    layer(x)
    fp8.end_step()
    before = layer.fp8_site.states.clone()
    bad = x.clone()
    bad[0, 0] = math.inf
    layer(bad)
    fp8.end_step()
    assert layer.fp8_site.states.equal(before)
    layer(2 * x)
    fp8.end_step(skipped=True)
    assert layer.fp8_site.states.equal(before)


def test_a_computed_weight_has_scales_of_its_own(device: str) -> None:
    devices._said.clear()
    w = parameter(32, 48, device=device, dtype=torch.float32)
    x = made(32, 32, device=device)
    with pytest.warns(UserWarning, match="a weight that is computed has no history"):
        y = fp8.matmul(x, w.to(torch.bfloat16), recipe())
    assert y.equal(fp8.matmul(x, w.to(torch.bfloat16), recipe("current")))


def test_inference_before_training(device: str) -> None:
    """Trainers may evaluate a validation batch first. Training can write the states that this creates."""
    layer = fp8.Linear(32, 32, device=device, dtype=torch.bfloat16, recipe=recipe(amax_history_len=9))
    x = made(32, 32, device=device)
    with torch.inference_mode():
        layer(x)
    layer(x).float().sum().backward()
    torch.optim.SGD(layer.parameters(), lr=0.1).step()
    assert (layer.fp8_site.states[:, :2] != 1).all()


def test_weights_that_graphs_may_write_are_always_cast(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured step writes weights in each replay, and torch does not count that."""
    layer = fp8.Linear(32, 32, device=device, dtype=torch.bfloat16, recipe=recipe("current"))
    x = made(32, 32, device=device)
    layer(x)
    with monkeypatch.context() as capture:
        capture.setattr(steps, "_capturing", lambda: True)
        fp8.end_step()
    with torch.no_grad():
        before = layer(x)
        layer.weight.data.mul_(2)  # not counted either
        layer.bias.data.mul_(2)
        assert layer(x).equal(2 * before)


def test_a_first_use_inside_a_backward_pass_is_in_fp8(device: str) -> None:
    layer = fp8.Linear(32, 32, device=device, dtype=torch.bfloat16, recipe=recipe("current"))
    x, found = made(32, 32, device=device), []
    through = torch.ones(3, device=device, requires_grad=True) * 2
    through.register_hook(lambda _: found.append(layer(x).detach()))
    through.sum().backward()
    assert found[0].equal(layer(x))


def test_training_forgets_the_weights_of_an_evaluation(device: str) -> None:
    """Averages of weights are often put in their place by `.data`, which torch does not count."""
    layer = fp8.Linear(32, 32, False, device, torch.bfloat16, recipe=recipe("current"))
    x = made(32, 32, device=device)  # needs no gradient: codes for forward alone
    before = layer(x)
    fp8.end_step()
    with torch.no_grad():
        layer.weight.data.mul_(2)
        assert layer(x).equal(2 * before)
        layer.weight.data.mul_(0.5)
    assert layer(x).equal(before)


def test_replicas_have_states_of_their_own() -> None:
    layer = fp8.Linear(16, 16, recipe=recipe())
    assert layer._replicate_for_data_parallel().fp8_site is not layer.fp8_site


# --- Whose step it is ---------------------------------------------------------------------------------


def layer_of(device: str, **options: Any) -> fp8.Linear:
    return fp8.Linear(32, 32, False, device, torch.bfloat16, recipe=recipe(), **options)


def sgd(*layers: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for layer in layers for p in layer.parameters()], lr=1e-3)


@pytest.mark.parametrize("iterations", [1, 3])
def test_the_step_of_a_discriminator_leaves_the_history_of_the_generator(
    device: str, iterations: int
) -> None:
    """From its first step on, when the generator's optimizer has not stepped yet."""
    generator, discriminator = layer_of(device), layer_of(device)
    steps_of_generator, steps_of_discriminator = sgd(generator), sgd(discriminator)
    for number in range(iterations):
        fake = generator((number + 1) * made(16, 32, device=device))
        discriminator(fake.detach()).float().sum().backward()
        before = generator.fp8_site.states.clone()
        own = discriminator.fp8_site.states.clone()
        steps_of_discriminator.step()
        assert generator.fp8_site.states.equal(before)
        assert not discriminator.fp8_site.states.equal(own)
        discriminator(fake).float().sum().backward()
        own = discriminator.fp8_site.states.clone()
        steps_of_generator.step()
        assert not generator.fp8_site.states.equal(before)
        assert (generator.fp8_site.states[:, 2] == 0).all()
        assert discriminator.fp8_site.states.equal(own)


def test_frozen_weights_follow_any_step(device: str) -> None:
    """Base models under adapters are frozen. Their first layer has no backward pass."""
    base, adapter = layer_of(device).requires_grad_(False), layer_of(device)
    optimizer, x = sgd(adapter), made(16, 32, device=device)
    for _ in range(2):
        adapter(base(x)).float().sum().backward()
        optimizer.step()
        assert base.fp8_site.states[0, 2] == 0
        assert base.fp8_site.states[0, 3:].max() == x.abs().max()


def test_weights_that_no_optimizer_has_follow_a_step_after_their_backward_pass(device: str) -> None:
    """FSDP2 gives the optimizer shards, and the model other tensors."""
    sharded, plain = layer_of(device), layer_of(device)
    shard = nn.Parameter(sharded.weight.detach().clone())
    optimizer = torch.optim.SGD([shard, plain.weight], lr=1e-3)
    for _ in range(2):
        plain(sharded(made(16, 32, device=device))).float().sum().backward()
        optimizer.step()
        assert (sharded.fp8_site.states[:, 2] == 0).all()
        assert (sharded.fp8_site.states[:, :2] != 1).all()


def test_a_teacher_without_gradients_follows_any_step(device: str) -> None:
    """Its weights are averages of a model's, and no optimizer has them."""
    student, teacher, x = layer_of(device), layer_of(device), made(16, 32, device=device)
    optimizer = sgd(student)
    for _ in range(2):
        with torch.no_grad():
            target = teacher(x)
        (student(x) - target).float().square().sum().backward()
        optimizer.step()
        assert teacher.fp8_site.states[1, 3:].max() == teacher.weight.abs().max()


def test_views_of_a_parameter_follow_its_optimizer(device: str) -> None:
    """Views that begin inside the parameter follow it too."""
    both, other = parameter(64, 32, device=device), layer_of(device)
    optimizer, others = torch.optim.SGD([both], lr=1e-3), sgd(other)
    x = made(16, 32, device=device)
    for _ in range(2):
        fp8.matmul(x, both[32:], recipe()).float().sum().backward()
        other(x).float().sum().backward()
        site = sites.site_of(both[32:])
        before = site.states.clone()
        optimizer.step()
        assert not site.states.equal(before)
        fp8.matmul(x, both[32:], recipe())
        before = site.states.clone()
        others.step()
        assert site.states.equal(before)


def test_an_optimizer_per_parameter_ends_the_steps_of_its_own(device: str) -> None:
    """Steps in the backward pass end at the next forward, for the weights that were stepped."""
    inner, outside = layer_of(device), layer_of(device)
    optimizer, other = sgd(inner), sgd(outside)
    outside(made(16, 32, device=device)).float().sum().backward()
    other.step()
    inner.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    outside(2 * made(16, 32, device=device))
    before = outside.fp8_site.states.clone()
    inner(made(16, 32, device=device)).float().sum().backward()
    assert inner.fp8_site.states[2, 2] != 0
    inner(made(16, 32, device=device))
    assert inner.fp8_site.states[2, 2] == 0
    assert outside.fp8_site.states.equal(before)


# --- Optimizers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", [False, True])
def test_octavos_optimizers_make_codes_anew(device: str, release: bool) -> None:
    layer = fp8.Linear(64, 64, device=device, dtype=torch.bfloat16, recipe=recipe("current"))
    optimizer = AdamW8bit(layer.parameters(), lr=1.0, gradient_release=release, master="stochastic")
    x = made(32, 64, device=device)
    for step in range(3):
        y = layer(x)
        assert layer.fp8_site.casts == step + 1
        fresh = fp8.matmul(x, layer.weight.detach().clone().t(), recipe("current")) + layer.bias
        assert y.equal(fresh)
        y.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("residence", ["host", "stream"])
def test_states_in_host_memory_make_codes_anew(device: str, residence: str) -> None:
    """An attached optimizer has stepped before its weights are written: the module waits for them."""
    if device == "cpu" and residence == "stream":
        pytest.skip("a CPU has nothing to stream to")
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(3))).to(device)
    fp8.convert(model, recipe("current"))
    optimizer = AdamW8bit(model.parameters(), lr=1e-2, offload=residence, min_offload_size=0)
    optimizer.attach(model)
    x = made(32, 128, device=device, dtype=torch.float32)
    for step in range(4):
        y = model(x)
        assert [layer.fp8_site.casts for layer in model] == [step + 1] * 3
        optimizer.wait()
        expected = x
        for layer in model:
            copied = layer.weight.detach().clone()
            expected = fp8.matmul(expected, copied.t(), recipe("current")) + layer.bias
        assert y.equal(expected)
        y.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_compiled_model_has_the_same_bits(device: str) -> None:
    layer = fp8.Linear(32, 32, device=device, dtype=torch.bfloat16, recipe=recipe("current"))
    x = made(32, 32, device=device)
    compiled = torch.compile(lambda x: layer(x * 2) + 1, backend="eager")
    assert compiled(x).equal(layer(x * 2) + 1)
    compiled(x).sum().backward()
    assert layer.weight.grad is not None


def test_steps_inside_the_backward_pass_end_a_step_after_it(device: str) -> None:
    layers = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)).to(device, torch.bfloat16)
    fp8.convert(layers, recipe())
    for layer in layers:
        own = torch.optim.SGD([layer.weight], lr=0.1)
        layer.weight.register_post_accumulate_grad_hook(lambda _, own=own: own.step())
    x = made(32, 32, device=device)
    layers(x).float().sum().backward()
    assert all((layer.fp8_site.states[:, 2] > 0).all() for layer in layers)
    layers(x)
    assert all((layer.fp8_site.states[:, :2] != 1).all() for layer in layers)


# --- Models -------------------------------------------------------------------------------------------


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.bare = nn.Parameter(torch.randn(64, 48) * 64**-0.5)
        self.head = nn.Linear(48, 10)  # no multiple of 16

    def forward(self, x: Tensor) -> Tensor:
        return self.head(fp8.matmul(self.body(x), self.bare))


def small(device: str) -> Small:
    torch.manual_seed(0)
    return Small().to(device)


def losses_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, device: str, steps: range, enabled: bool = True
) -> list[float]:
    target = made(32, 10, device=device, dtype=torch.float32, seed=99)
    found = []
    for step in steps:
        x = made(64, 32, device=device, dtype=torch.float32, seed=step % 4)
        with fp8.autocast(enabled, recipe()), torch.autocast(device, dtype=torch.bfloat16):
            y = model(x)
        loss = (y.float() - x.sin() @ target).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize("cls", [torch.optim.AdamW, AdamW8bit])
@pytest.mark.filterwarnings("ignore:fp8")
def test_a_converted_model_learns_as_in_bf16(device: str, cls: Any) -> None:
    model = small(device)
    params, names = list(model.parameters()), list(model.state_dict())
    optimizer = cls(params, lr=3e-3)
    assert fp8.convert(model) is model
    assert all(one is other for one, other in zip(params, model.parameters(), strict=True))
    assert set(names) <= set(model.state_dict())
    converted = losses_of(model, optimizer, device, range(60))
    plain = small(device)
    expected = losses_of(plain, cls(plain.parameters(), lr=3e-3), device, range(60), enabled=False)
    assert expected[-1] < 0.3 * expected[0]
    assert converted[-1] == pytest.approx(expected[-1], rel=0.1)


def test_convert_takes_what_the_filter_says() -> None:
    class Own(nn.Linear):
        pass

    model = nn.ModuleDict({"a": nn.Linear(16, 16), "b": nn.Linear(16, 16), "own": Own(16, 16)})
    called = []
    model["a"].register_forward_hook(lambda *_: called.append(1))
    fp8.convert(model, recipe(), lambda module, name: name != "b")
    kinds = {name: type(module) for name, module in model.items()}
    assert kinds == {"a": fp8.Linear, "b": nn.Linear, "own": Own}
    model["a"](torch.randn(16, 16))
    assert called == [1]
    fp8.convert(root := nn.Linear(16, 16), recipe())
    assert type(root) is fp8.Linear


@pytest.mark.filterwarnings("ignore:fp8")
def test_a_resumed_run_has_the_same_bits(device: str) -> None:
    def begin() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = fp8.convert(small(device))
        return model, AdamW8bit(model.parameters(), lr=3e-3)

    model, optimizer = begin()
    losses_of(model, optimizer, device, range(5))
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), fp8.state_dict(model)], file)
    rest = losses_of(model, optimizer, device, range(5, 10))
    file.seek(0)
    weights, moments, scales = torch.load(file, weights_only=True)
    model, optimizer = begin()
    model.load_state_dict(weights)
    optimizer.load_state_dict(moments)
    fp8.load_state_dict(model, scales)
    assert "bare" in scales
    assert losses_of(model, optimizer, device, range(5, 10)) == rest
    # Without the scales the run is another one.
    model, optimizer = begin()
    model.load_state_dict({k: v for k, v in weights.items() if "_extra" not in k})
    optimizer.load_state_dict(moments)
    assert losses_of(model, optimizer, device, range(5, 10)) != rest


def test_files_that_are_none_are_refused(device: str) -> None:
    layer = fp8.Linear(16, 16, device=device, recipe=recipe())
    for bad in (torch.zeros(3, dtype=torch.uint8), torch.zeros(4), "text"):
        with pytest.raises(ValueError, match="fp8: a site's state"):
            layer.set_extra_state(bad)
    with pytest.raises(KeyError, match="no parameter 'other'"):
        fp8.load_state_dict(layer, {"other": layer.get_extra_state()})


def test_copies_have_states_of_their_own(device: str) -> None:
    layer = fp8.Linear(16, 16, device=device, dtype=torch.bfloat16, recipe=recipe())
    x = made(16, 16, device=device)
    layer(x)
    fp8.end_step()
    twin = copy.deepcopy(layer)
    assert twin(x).equal(layer(x))
    twin(64 * x)
    fp8.end_step()
    assert not twin.fp8_site.states.equal(layer.fp8_site.states)


def test_layers_that_share_a_weight_share_its_site(device: str) -> None:
    one, other = (fp8.Linear(16, 16, False, device, torch.bfloat16, recipe=recipe()) for _ in range(2))
    other.weight = one.weight
    x = made(16, 16, device=device)
    one(x)
    other(4 * x)
    assert one.fp8_site is other.fp8_site
    assert one.fp8_site.casts == 1
    assert one.fp8_site.states[0, 2] == 4 * x.abs().max()


def test_a_weight_that_moves_takes_its_states_along(device: str) -> None:
    layers = nn.Sequential(*(fp8.Linear(16, 16, device=device, recipe=recipe()) for _ in range(3)))
    x = made(16, 16, device=device, dtype=torch.float32)
    layers(x)
    fp8.end_step()
    before = [layer.fp8_site.states.clone() for layer in layers]
    layers.to(torch.bfloat16)  # new memory
    with torch.no_grad():
        layers(x.bfloat16())
    for layer, states in zip(layers, before, strict=True):
        assert layer.fp8_site.states[:, :2].equal(states[:, :2])
        assert (layer.fp8_site.states[:, 3:] > 0).any()


def test_states_are_given_back_with_their_weights() -> None:
    def use() -> int:
        layer = fp8.Linear(16, 16, recipe=recipe(amax_history_len=7))
        layer(torch.randn(16, 16))
        return int(layer.fp8_site.states.data_ptr())

    assert len({use() for _ in range(5)}) <= 2


def test_states_are_not_given_away_before_the_backward_pass(device: str) -> None:
    layer, x = fp8.Linear(16, 16, device=device), torch.ones(16, 16, device=device)
    chosen = recipe(amax_history_len=11)
    with fp8.autocast(recipe=chosen):
        y = layer(x)
    with fp8.autocast(recipe=recipe(amax_history_len=12)):
        layer(x)  # has other states now
    other = fp8.Linear(16, 16, device=device, recipe=chosen)
    other(x)
    y.backward(torch.ones_like(y))
    assert not other.fp8_site.states[2, 2:].any()


# --- Choices and errors -------------------------------------------------------------------------------


def test_recipes_are_checked_by_the_core() -> None:
    for fields, message in {
        ("format", "e3m4"): "'e3m4', expected one of hybrid, e4m3, e5m2",
        ("recipe", "mx"): "'mx', expected one of delayed, current, rowwise, block",
        ("amax_compute_algo", "mean"): "'mean', expected one of max, most_recent",
        ("amax_history_len", 0): "amax_history_len: got 0, expected 1 to 65536",
        ("margin", 17): "margin: got 17, expected 0 to 16",
        ("margin", 0.5): "margin: got 0.5, expected an integer",
        ("select", "fastest"): "select: got 'fastest', expected one of measure, always",
        ("fallback", "fp16"): "fallback: got 'fp16', expected one of error, bf16",
    }.items():
        with pytest.raises(ValueError, match=message):
            fp8.Recipe(**dict([fields]))
    assert copy.deepcopy(fp8.Recipe()) == fp8.Recipe()
    with pytest.raises(TypeError, match="expected an octavo"):
        fp8.autocast(recipe="delayed")


def test_autocast_decides_where_nothing_else_does(device: str) -> None:
    w, x = parameter(32, 48, device=device), made(32, 32, device=device)
    plain = x @ w
    with fp8.autocast(recipe=recipe("block")):
        assert fp8.matmul(x, w).equal(fp8.matmul(x, w, recipe("block")))
        assert fp8.matmul(x, w, recipe("rowwise")).equal(fp8.matmul(x, w.detach().clone(), recipe("rowwise")))
        with fp8.autocast(enabled=False):
            assert fp8.matmul(x, w, recipe("block")).equal(plain)
        assert not fp8.matmul(x, w).equal(plain)


def test_equal_recipes_of_autocast_are_prepared_once(device: str) -> None:
    w, x = parameter(32, 48, device=device), made(32, 32, device=device)
    for _ in range(3):
        with fp8.autocast(recipe=recipe("block")):
            fp8.matmul(x, w)
    assert len(sites.find(w).made) == 1


@pytest.fixture
def without_reference(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("OCTAVO_FP8_REFERENCE")
    devices._why_not.cache_clear()
    devices._said.clear()
    yield
    devices._why_not.cache_clear()


@pytest.mark.usefixtures("without_reference")
def test_a_device_without_fp8_is_an_error_or_a_warning() -> None:
    x, w = made(16, 16, device="cpu"), parameter(16, 16, device="cpu")
    with pytest.raises(
        OctavoError, match=r"got cpu, expected a GPU of compute capability 8\.9.*fallback='bf16'"
    ):
        fp8.matmul(x, w, recipe())
    with pytest.warns(UserWarning, match=r"got cpu.*as fallback='bf16' asks"):
        assert fp8.matmul(x, w, recipe(fallback="bf16")).equal(x @ w)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        fp8.matmul(x, w, recipe(fallback="bf16"))


def test_wrong_tensors_are_named(device: str) -> None:
    w, x = parameter(32, 48, device=device), made(32, 32, device=device)
    with pytest.raises(ValueError, match=r"x: got shape \(32, 16\), expected its last dimension to be 32"):
        fp8.matmul(x[:, :16], w, recipe())
    with pytest.raises(TypeError, match=r"x: got torch.float64, expected float32"):
        fp8.matmul(x.double(), w, recipe())
    with pytest.raises(ValueError, match=r"w: got shape \(32,\)"):
        fp8.matmul(x, w[:, 0], recipe())
    with pytest.raises(ValueError, match=r"x: got shape \(5, 32, 32\), expected \[.., 2, tokens, 32\]"):
        fp8.matmul(made(5, 32, 32, device=device), parameter(2, 32, 48, device=device), recipe())
    with pytest.raises(ValueError, match="sum_groups"):
        fp8.matmul(x, w, recipe(), sum_groups=True)


def test_keys_of_decisions() -> None:
    kinds = Kinds(torch.device("cpu"), torch.bfloat16, torch.float32, torch.bfloat16)
    keys = {
        choice_timing.key_of(kinds, recipe(), Shape(1, tokens, 32, 48, False, False, True))
        for tokens in (8000, 8192)
    }
    assert keys == {"1x8192x32x48 turned_weight bfloat16 float32 bfloat16 hybrid delayed"}
    assert choice_timing._rounded(37) == 48
    assert choice_timing._rounded(8193) == 10240


def test_the_faster_passes_are_chosen_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = Kinds(torch.device("cpu"), torch.bfloat16, torch.bfloat16, torch.bfloat16)
    shape = Shape(1, 32, 48, 64, False, False, False)
    x, w = made(1, 32, 48, device="cpu"), made(1, 64, 48, device="cpu").transpose(1, 2)
    asked = []

    def timed(work: Any) -> float:
        """Calls in the order of times_of: both casts of each operand, FP8 matmuls, torch's matmuls."""
        work()
        asked.append(1)
        return [10.0, 10, 10, 10, 10, 10, 50, 50, 200, 100, 100, 100][len(asked) - 1]

    monkeypatch.setattr(choice_timing, "decisions", {})
    monkeypatch.setattr(choice_timing.times_of, "__defaults__", (timed,))
    walls = [300.0, 400.0]

    def wall(work: Any) -> float:
        work()
        return walls.pop(0)

    monkeypatch.setattr(choice_timing.walls_of, "__defaults__", (wall,))
    chance = torch.get_rng_state()
    with caplog.at_level("INFO", logger="octavo.fp8"):
        assert choice_timing.decide(kinds, recipe(), shape, x, w) == FORWARD | DGRAD
        assert choice_timing.decide(kinds, recipe(), shape, x, w) == FORWARD | DGRAD
    assert len(asked) == 12
    assert not walls
    assert torch.get_rng_state().equal(chance)  # a recomputed forward does not measure: same dropout
    (record,) = caplog.records
    assert "forward fp8 (100 us plain, 50 fp8)" in record.message
    assert "wgrad plain (100 us plain, 200 fp8)" in record.message


@pytest.mark.parametrize(
    ("groups", "one_input", "one_output"), [(1, False, False), (2, True, False), (2, False, True)]
)
def test_a_shape_that_the_host_cannot_launch_fast_enough_stays_plain(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    groups: int,
    one_input: bool,
    one_output: bool,
) -> None:
    kinds = Kinds(torch.device("cpu"), torch.bfloat16, torch.float32, torch.bfloat16)
    shape = Shape(groups, 32, 48, 64, one_input, one_output, True)
    x = made(1 if one_input else groups, 32, 48, device="cpu")
    w = made(groups, 48, 64, device="cpu", dtype=torch.float32)
    walls = [500.0, 400.0]

    def wall(work: Any) -> float:
        work()
        return walls.pop(0)

    monkeypatch.setattr(choice_timing, "decisions", {})
    monkeypatch.setattr(choice_timing.times_of, "__defaults__", (lambda work: float(len(walls)),))
    monkeypatch.setattr(choice_timing.walls_of, "__defaults__", (wall,))
    library = choice_timing._abi.library()

    def fastest(times: Any, passes: Any) -> int:
        passes._obj.value = FORWARD | DGRAD | WGRAD
        return 0

    monkeypatch.setattr(library, "octavo_fp8_fastest", fastest)
    with torch.inference_mode(), caplog.at_level("INFO", logger="octavo.fp8"):
        assert choice_timing.decide(kinds, recipe(), shape, x.clone(), w) == 0
    (record,) = caplog.records
    assert "400 us plain, 500 fp8: so all are plain" in record.message
    assert "forward plain" in record.message


def test_measuring_is_no_part_of_a_checkpointed_forward() -> None:
    """Hooks of the caller's graph would count what measuring saves, and run the forward again."""
    from torch.utils.checkpoint import checkpoint

    kinds = Kinds(torch.device("cpu"), torch.bfloat16, torch.bfloat16, torch.bfloat16)
    shape = Shape(1, 32, 48, 64, False, False, True)
    w, runs = made(1, 48, 64, device="cpu"), []

    def wall(work: Any) -> float:
        work()
        return 1.0

    def forward(x: Tensor) -> Tensor:
        runs.append(1)
        if len(runs) == 1:
            passes = FORWARD | DGRAD | WGRAD
            choice_timing.walls_of(kinds, recipe(), shape, passes, x.detach()[None], w, wall)
        return x.square().sum()

    x = made(32, 48, device="cpu").requires_grad_()
    checkpoint(forward, x, use_reentrant=False).backward()
    assert len(runs) == 2


def test_a_shape_stays_plain_where_there_is_no_memory_to_time_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = Kinds(torch.device("cpu"), torch.bfloat16, torch.bfloat16, torch.bfloat16)
    shape = Shape(1, 32, 48, 64, False, False, False)
    x, w = made(1, 32, 48, device="cpu"), made(1, 64, 48, device="cpu").transpose(1, 2)

    def timed(work: Any) -> float:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(choice_timing, "decisions", {})
    monkeypatch.setattr(choice_timing.times_of, "__defaults__", (timed,))
    with caplog.at_level("INFO", logger="octavo.fp8"):
        assert choice_timing.decide(kinds, recipe(), shape, x, w) == 0
    monkeypatch.undo()
    (record,) = caplog.records
    assert "no memory to time both ways" in record.message


def test_a_cast_with_a_bias_gradient_gets_its_workspace_from_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU the core needs memory for the sums of tiles, and has none of its own."""
    kinds = Kinds(torch.device("cpu"), torch.bfloat16, torch.bfloat16, torch.bfloat16)
    shape = Shape(1, 300, 32, 48, False, False, False)
    on_gpu = Layer(kinds._replace(device=torch.device("cuda:0")), recipe().numbers, shape, DGRAD)
    assert on_gpu.cast_workspace_bytes == 4 * 48 * (3 + 1)
    layer = Layer(kinds, recipe().numbers, shape, DGRAD)
    assert layer.cast_workspace_bytes == 0
    seen = []

    def run(_layer: Any, args: Any) -> int:
        seen.append((args.cast_workspace, args.cast_workspace_bytes))
        return 0

    monkeypatch.setattr(layer, "cast_workspace_bytes", on_gpu.cast_workspace_bytes)
    monkeypatch.setattr(layer, "_run", run)
    memory, codes, transposed = layer.empty_pair(DY)
    dy = torch.zeros(300, 48, dtype=torch.bfloat16)
    sources = only(DY, dy.data_ptr())
    places = only(DY, codes), only(DY, transposed)
    layer.run(sources, *places, NONE, memory.data_ptr(), False, None, layer.empty_sums())
    ((address, size),) = seen
    assert address
    assert size == 4 * 48 * (3 + 1)


def test_structs_are_those_of_the_header() -> None:
    """Fields of FP8's structs, in the header's order."""
    import pathlib
    import re

    header = (pathlib.Path(__file__).resolve().parents[2] / "include/octavo/octavo.h").read_text()
    for name, struct in {
        "octavo_fp8_layer": _abi.Fp8Layer,
        "octavo_fp8_sizes": _abi.Fp8Sizes,
        "octavo_fp8_run_args": _abi.Fp8RunArgs,
        "octavo_fp8_scale_args": _abi.Fp8ScaleArgs,
        "octavo_fp8_times": _abi.Fp8Times,
    }.items():
        body = re.search(rf"typedef struct \{{([^}}]*)\}} {name};", header)[1]
        body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
        fields = [re.sub(r".*[\s*]", "", part.strip().split("[")[0]) for part in re.split("[;,]", body)]
        assert [field for field in fields if field] == [field for field, _ in struct._fields_]


# --- GPUs ---------------------------------------------------------------------------------------------


@pytest.fixture
def cuda(device: str) -> str:
    if device != "cuda":
        pytest.skip("asks about a GPU")
    return device


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("name", RECIPES)
def test_casts_have_the_bits_of_the_cpu(cuda: str, name: str, format_: str) -> None:
    chosen = recipe(name, format=format_)
    sources = [
        made(2, 144, 160, device="cpu"),
        made(2, 160, 272, device="cpu"),
        made(2, 144, 272, device="cpu"),
    ]
    shape = Shape(2, 144, 160, 272, False, False, True)
    found = []
    for place in (torch.device("cpu"), torch.device("cuda", torch.cuda.current_device())):
        kinds = Kinds(place, torch.bfloat16, torch.bfloat16, torch.bfloat16)
        layer = cached_layer(kinds, chosen.numbers, shape, 7)
        states = torch.zeros(3, 2 + max(chosen.numbers.length, 4), device=place)
        states[:, :2] = 16
        for operand, source in enumerate(sources):
            codes = [torch.zeros(size, dtype=torch.uint8, device=place) for size in layer.bytes[operand]]
            addresses = [each.data_ptr() for each in codes]
            layer.cast(operand, source.to(place), *addresses, states.data_ptr(), True, layer.stream())
            found.append([each.cpu() for each in codes])
        found.append([states.cpu()])
    half = len(found) // 2
    for ours, theirs in itertools.chain.from_iterable(
        zip(a, b, strict=True) for a, b in zip(found[:half], found[half:], strict=True)
    ):
        assert ours.equal(theirs)


@pytest.mark.parametrize("name", RECIPES)
def test_matmuls_are_close_to_the_cpus(cuda: str, name: str) -> None:
    tensors = [made(144, 160, device="cpu"), made(144, 272, device="cpu", seed=2)]
    results = []
    for place in ("cpu", cuda):
        x, dy = (each.to(place) for each in tensors)
        results.append(run(x, parameter(160, 272, device=place), dy, recipe(name)))
    for ours, theirs in zip(*results, strict=True):
        assert sqnr(theirs.cpu(), ours.double()) >= 40  # both round to bf16; forward sums in 14 bits


def test_a_captured_step_is_an_eager_one(cuda: str) -> None:
    layer = fp8.Linear(64, 64, device=cuda, dtype=torch.bfloat16, recipe=recipe())
    twin = copy.deepcopy(layer)
    x = made(32, 64, device=cuda)

    def step(of: nn.Module) -> Tensor:
        of.zero_grad(set_to_none=False)
        y = of(x)
        y.float().square().mean().backward()
        fp8.end_step()
        return y

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(layer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = step(layer)
    for _ in range(3):
        step(twin)
    for turn in range(3):
        x.mul_(1.5)
        with torch.no_grad():
            for each in (layer, twin):
                each.weight.mul_(1 + turn)
        graph.replay()
        expected = step(twin)
        assert y.equal(expected)
        assert layer.weight.grad.equal(twin.weight.grad)


@pytest.mark.filterwarnings("ignore:fp8")
def test_measuring_decides_and_is_kept(cuda: str, caplog: pytest.LogCaptureFixture) -> None:
    chosen = fp8.Recipe(amax_history_len=4)
    layer = fp8.Linear(256, 256, device=cuda, dtype=torch.bfloat16, recipe=chosen)
    x = made(512, 256, device=cuda).requires_grad_()
    with caplog.at_level("INFO", logger="octavo.fp8"):
        layer(x).float().sum().backward()
        layer(x)
    assert len([r for r in caplog.records if "1x512x256x256" in r.message]) == 1
    (passes,) = layer.fp8_site.decisions.values()
    assert 0 <= passes <= 7
    twin = fp8.Linear(256, 256, device=cuda, dtype=torch.bfloat16, recipe=chosen)
    twin.load_state_dict(layer.state_dict())
    assert twin.fp8_site.decisions == layer.fp8_site.decisions
