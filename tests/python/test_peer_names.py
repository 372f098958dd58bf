"""octavo.optim beside torchao and bitsandbytes as installed: classes, arguments, defaults, error texts."""

from __future__ import annotations

import importlib
import inspect
import itertools
import re
from typing import Any

import pytest
import torch
from octavo import optim
from octavo._describe import algorithms
from peers import need

PRIVATE = {"GlobalOptimManager"}  # no optimizer: test_bitsandbytes_names.py
KEYS = {option.tuple or option.name for described in algorithms().values() for option in described.options}
# What has no default there, or one that it refuses itself.
NEEDED: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 0.1, "momentum": 0.9},
    "LARS": {"lr": 0.1, "momentum": 0.9},
}
pytestmark = pytest.mark.filterwarnings("ignore")


def classes(peer: str) -> dict[str, type]:
    """The peer's public optimizers by name."""
    need(peer)
    module = importlib.import_module(f"{peer}.optim")
    found = {name: kind for name, kind in vars(module).items() if inspect.isclass(kind)}
    return {
        name: kind for name, kind in found.items() if name[0] != "_" and name not in PRIVATE
        and issubclass(kind, torch.optim.Optimizer)
    }  # fmt: skip


def shared(peer: str) -> dict[str, type]:
    """Those that are here, but for the one that takes the class of another."""
    found = classes(peer)
    return {name: found[name] for name in found if name in set(optim.__all__) - {"CPUOffloadOptimizer"}}


def arguments(kind: type) -> dict[str, Any]:
    """Name and default of what the constructor takes besides the parameters; a rate for those without."""
    given = list(inspect.signature(kind.__init__).parameters.values())[2:]
    return {p.name: 0.1 if p.default is p.empty else p.default for p in given}


def make(kind: Any, *args: Any, **kwargs: Any) -> Any:
    return kind([torch.nn.Parameter(torch.zeros(4, 4))], *args, **kwargs)


def test_every_optimizer_of_torchao_is_here() -> None:
    assert set(classes("torchao")) <= set(optim.__all__)
    assert len(shared("torchao")) == 6


def test_every_optimizer_of_bitsandbytes_is_here() -> None:
    assert set(classes("bitsandbytes")) <= set(optim.__all__)
    assert len(shared("bitsandbytes")) == 40


def needed(name: str) -> dict[str, Any]:
    return next((given for title, given in NEEDED.items() if title in name), {})


@pytest.mark.parametrize("peer", ["torchao", "bitsandbytes"])
def test_arguments_by_name_and_their_defaults(peer: str) -> None:
    for name, kind in shared(peer).items():
        given = {**arguments(kind), **needed(name)}
        ours = make(getattr(optim, name), **given)
        bare = make(getattr(optim, name), **needed(name))
        for key in KEYS - ({"amsgrad"} if "LAMB" in name else set()):  # that one is refused there and here
            if key in given:
                assert bare.param_groups[0][key] == ours.param_groups[0][key] == given[key], (name, key)
        if "block_size" in given:
            torchaos = {"Adam4bit": 128, "AdamW4bit": 128}.get(name, 256)
            assert given["block_size"] == torchaos, name  # of which ours says the same, in formats.md


@pytest.mark.parametrize("peer", ["torchao", "bitsandbytes"])
def test_arguments_by_position(peer: str) -> None:
    """Up to the last that is a number of the formula."""
    for name, kind in shared(peer).items():
        given = arguments(kind)
        keys = list(itertools.takewhile(lambda key: key in KEYS, given))
        values = [0.5 if key == "lr" else given[key] for key in keys]
        assert len(keys) >= 3, name
        keys = [key for key in keys if key != "amsgrad" or "LAMB" not in name]
        ours = make(getattr(optim, name), *values)
        for key in keys:
            assert ours.param_groups[0][key] == (0.5 if key == "lr" else given[key]), (name, key)


def test_all_arguments_of_bitsandbytes_by_position() -> None:
    """Also those behind the formula's, whose order differs from class to class."""
    for name, kind in shared("bitsandbytes").items():
        given = arguments(kind)
        size = 32 if "32bit" in name and "Adam" in name else 8
        asked = {"lr": 0.5, "optim_bits": size, "min_8bit_size": 5000, "is_paged": True, "max_unorm": 0.25}
        values = {key: asked.get(key, default) for key, default in given.items()}
        if name in ("Adam32bit", "AdamW32bit", "PagedAdam32bit", "PagedAdamW32bit", "Adagrad32bit"):
            values["optim_bits"] = 32
        for count in range(1, len(values) + 1):  # any number of them
            ours = make(getattr(optim, name), *list(values.values())[:count])
            group, some = ours.param_groups[0], dict(list(values.items())[:count])
            assert group["lr"] == 0.5
            assert group["min_quantized_size"] == some.get("min_8bit_size", 4096), (name, count)
            if "max_unorm" in some:
                assert group["max_unorm"] == 0.25, (name, count)
            if some.get("is_paged"):
                assert ours._offload_options.offload == "auto", (name, count)


def test_pytorch_lars_is_that_of_bitsandbytes() -> None:
    need("bitsandbytes")
    theirs = importlib.import_module("bitsandbytes.optim").PytorchLARS
    results = []
    for kind in (theirs, optim.PytorchLARS):
        generator = torch.Generator().manual_seed(0)
        param = torch.nn.Parameter(torch.randn(40, 130, generator=generator))
        found = []
        for options in ((0.9, 0.0, 0.1, True), (0.9, 0.5, 0.0, False), (0.9, 0.0, 0.01, False, 0.5)):
            optimizer = kind([param], 0.1, *options)
            for _ in range(3):
                param.grad = torch.randn(param.shape, generator=generator)
                optimizer.step()
            found.append(param.detach().clone())
        results.append(found)
    for ours, other in zip(*results, strict=True):
        # Products are rounded once here (fma) and twice there, and norms are added in another order.
        torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-6)
    assert make(optim.PytorchLARS).param_groups[0]["momentum"] == 0


WRONG: tuple[dict[str, Any], ...] = (
    {"lr": -1.0},
    {"eps": -1.0},
    {"betas": (1.5, 0.9)},
    {"betas": (0.9, 1.5)},
    {"weight_decay": -1.0},
)


@pytest.mark.parametrize("peer", ["torchao", "bitsandbytes"])
def test_wrong_values_have_the_peers_texts(peer: str) -> None:
    """Where a peer refuses a value, ours refuses it in the same words."""
    compared = 0
    for name, kind in shared(peer).items():
        for wrong in WRONG:
            if not set(wrong) <= set(arguments(kind)):
                continue
            try:
                make(kind, **{**needed(name), **wrong})
            except ValueError as error:
                with pytest.raises(ValueError, match=re.escape(str(error))):
                    make(getattr(optim, name), **wrong)
                compared += 1
    assert compared >= 4 * len(WRONG)
