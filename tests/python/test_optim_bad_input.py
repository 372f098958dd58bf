"""Parameters and gradients that cannot be used: an error in torch's style that names the parameter, and not
one byte of parameters, states and groups changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from models import gradients, make_params, refused, set_grads, snapshot, train
from models import trained_groups as trained
from octavo import optim
from octavo._abi import OctavoError
from octavo._engine import device_numbers
from octavo.fp8 import devices as fp8_devices
from octavo.fp8.recipe import Recipe
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import Parameter
from torch.testing._internal.two_tensor import TwoTensor

# --- Parameters -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda d: torch.zeros(3, dtype=torch.complex64, device=d), RuntimeError, "complex parameters"),
        (lambda d: torch.zeros(3, dtype=torch.float64, device=d), RuntimeError, "torch.float64 parameters"),
        (lambda d: torch.zeros(4, 4, device=d).to_sparse(), RuntimeError, "parameters are not supported"),
        (lambda d: torch.zeros(3, device="meta"), RuntimeError, "parameters on meta are not supported"),
    ],
)
def test_parameters(make: Any, error: type[Exception], message: str, device: str) -> None:
    bad = Parameter(make(device))
    with pytest.raises(error, match=rf"AdamW: parameter 0 of group 0: .*{message}"):
        optim.AdamW([bad])
    _, optimizer = trained(device)
    with refused(optimizer, error, rf"AdamW: parameter 'bad': .*{message}"):
        optimizer.add_param_group({"params": [("good", make_params([(3,)], device)[0]), ("bad", bad)]})


def test_amd_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ROCm build of torch calls AMD's GPUs `cuda`; the library's CUDA code cannot run there."""
    monkeypatch.setattr(torch.version, "hip", "6.4.43482")
    message = r"cuda:0 is an AMD GPU \(this torch is a ROCm build, HIP 6.4.43482\): .* NVIDIA GPUs only"
    with FakeTensorMode():
        bad = Parameter(torch.empty(3, device="cuda:0"))
    with pytest.raises(RuntimeError, match=rf"AdamW: parameter 0 of group 0: {message}"):
        optim.AdamW([bad])
    with pytest.raises(RuntimeError, match=message):
        device_numbers(torch.device("cuda", 0))
    monkeypatch.setattr(fp8_devices, "_why_not", fp8_devices._why_not.__wrapped__)  # it keeps its answers
    with pytest.raises(OctavoError, match=rf"\[fp8\] device: {message}.*Recipe\(fallback='bf16'\)"):
        fp8_devices.usable(torch.device("cuda", 0), Recipe())
    assert device_numbers(torch.device("cpu")) == (0, 0)  # the CPU of such a build is used as ever
    trained("cpu", steps=1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_a_parameter_that_becomes_something_else(dtype: torch.dtype, device: str) -> None:
    model = nn.Linear(3, 4).to(device)
    optimizer = optim.AdamW(model.named_parameters())
    train(optimizer, list(model.parameters()), gradients(list(model.parameters()), 1))
    if dtype == torch.float64:
        model.double()
        with refused(optimizer, RuntimeError, "parameter 'weight': torch.float64 parameters are not"):
            optimizer.step()
    else:
        model.weight.data = model.weight.data[:2].clone()
        model.weight.grad = torch.ones(2, 3, device=device)
        with refused(optimizer, RuntimeError, "parameter 'weight': its state was made for shape"):
            optimizer.step()


# --- Gradients ------------------------------------------------------------------------------------


def sparse(param: Tensor) -> None:
    param.grad = torch.ones_like(param).to_sparse()


def of_another_shape(param: Tensor) -> None:
    param.grad = torch.ones_like(param)
    param.grad.data = torch.ones(2, 2, device=param.device)


def shortened_in_place(param: Tensor) -> None:
    """Its address stays that of the gradient before."""
    param.grad.data = param.grad.data[:3]


def turned(param: Tensor) -> None:
    """As long as it should be, in memory of its own."""
    other = torch.ones(130, 40, device=param.device)
    param.grad = torch.ones_like(param)
    param.grad.data = other


def of_another_dtype(param: Tensor) -> None:
    param.grad = torch.ones_like(param)
    param.grad.data = param.grad.data.double()


def on_another_device(param: Tensor) -> None:
    param.grad = torch.ones_like(param)
    param.grad.data = torch.ones(param.shape, device="cuda" if param.device.type == "cpu" else "cpu")


GRADIENTS: dict[str, tuple[Callable[[Tensor], None], str]] = {
    "sparse": (sparse, "sparse gradients are not supported"),
    "shape": (of_another_shape, r"its gradient has shape \(2, 2\), expected \(40, 130\)"),
    "shortened": (shortened_in_place, r"its gradient has shape \(3, 130\), expected \(40, 130\)"),
    "turned": (turned, r"its gradient has shape \(130, 40\), expected \(40, 130\)"),
    "dtype": (of_another_dtype, "torch.float64 gradients are not supported"),
    "device": (on_another_device, "its gradient is on {other}, expected {device}, where the parameter is"),
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("when", ["first", "later"])
@pytest.mark.parametrize("where", [0, 1])
def test_gradients(where: int, when: str, name: str, device: str) -> None:
    """Whichever group it is in and however many steps there have been: no group steps, none gets states."""
    if name == "device" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    spoil, message = GRADIENTS[name]
    if name == "device":
        here, there = ("cuda:0", "cpu") if device == "cuda" else ("cpu", "cuda:0")
        message = message.format(device=here, other=there)
    params = make_params([(40, 130), (40, 130)], device)
    optimizer = optim.AdamW8bit([{"params": [("a", params[0])]}, {"params": [("b", params[1])]}])
    steps = gradients(params, 3)
    train(optimizer, params, steps[:2] if when == "later" else [])
    set_grads(params, steps[2])
    if when == "later":
        optimizer.step()
    spoil(params[where])
    with refused(optimizer, RuntimeError, f"AdamW8bit: parameter '{'ab'[where]}': {message}"):
        optimizer.step()
    assert len(optimizer.state) == (2 if when == "later" else 0)
    before = snapshot(optimizer)["params"]
    train(optimizer, params, steps[2:])  # and the next one is fine
    assert snapshot(optimizer)["params"] != before


def test_an_embedding_with_sparse_gradients(device: str) -> None:
    module = nn.Embedding(10, 4, sparse=True).to(device)
    optimizer = optim.AdamW(module.named_parameters())
    module(torch.tensor([1, 2], device=device)).sum().backward()
    with refused(optimizer, RuntimeError, "parameter 'weight': sparse gradients.*sparse=False"):
        optimizer.step()


def test_without_names_the_place_is_told(device: str) -> None:
    params, optimizer = trained(device, named=False)
    sparse(params[3])
    with refused(optimizer, RuntimeError, "parameter 1 of group 1: sparse gradients"):
        optimizer.step()


@pytest.mark.parametrize(("key", "value"), [("lr", float("nan")), ("lr", "fast"), ("betas", (0.9, 1.0))])
def test_numbers_that_go_bad_later(key: str, value: Any, device: str) -> None:
    """In the last group: the first one must not have stepped when it is found."""
    params, optimizer = trained(device)
    set_grads(params, gradients(params, 1)[0])
    good = optimizer.param_groups[1][key]
    optimizer.param_groups[1][key] = value
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match="Invalid"):
        optimizer.step()
    assert snapshot(optimizer)["params"] == before["params"]
    optimizer.param_groups[1][key] = good
    optimizer.step()


def test_parameters_that_share_memory(device: str) -> None:
    """One after another, as torch steps them: the same memory twice, a part of another's, and one apart."""

    def shared() -> list[nn.Parameter]:
        torch.manual_seed(0)
        storage = torch.randn(70, 64).to(device)
        views = [storage[:64], storage[:64], storage[32:], storage[64:], torch.randn(33, 64).to(device)]
        return [nn.Parameter(view) for view in views]

    ours, theirs = shared(), shared()
    optimizer, reference = optim.AdamW(ours), torch.optim.AdamW(theirs, foreach=False)
    for grads in gradients(ours, 4):
        train(optimizer, ours, [grads])
        train(reference, theirs, [grads])
    for p, q in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)
    assert torch.equal(ours[0][32:], ours[2][:32])
    assert {int(optimizer.state[p]["step"]) for p in ours} == {4}
    low = shared()
    train(optim.AdamW4bit(low), low, gradients(low, 2))


class _Named(Tensor):
    """A tensor subclass over memory of its own."""


def test_tensor_subclasses(device: str) -> None:
    pair = TwoTensor(torch.zeros(4, device=device), torch.zeros(4, device=device))
    with pytest.raises(RuntimeError, match="w': parameters of the tensor subclass TwoTensor, which has no m"):
        optim.AdamW([("w", nn.Parameter(pair))])
    params, plain = make_params([(70, 64)], device), make_params([(70, 64)], device)
    named = [nn.Parameter(params[0].detach().as_subclass(_Named))]
    steps = gradients(plain, 2)
    train(optim.AdamW8bit(named), named, steps)
    train(optim.AdamW8bit(plain), plain, steps)
    assert torch.equal(named[0].as_subclass(Tensor), plain[0])
