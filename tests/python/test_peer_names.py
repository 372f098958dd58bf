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

ABSENT = {"PytorchLARS"}  # a reference of its tests
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
    assert set(classes("bitsandbytes")) - set(optim.__all__) == ABSENT
    assert len(shared("bitsandbytes")) == 39


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
    """Up to the last that is a number of the formula; what follows is by name in docs/compatibility.md."""
    for name, kind in shared(peer).items():
        given = arguments(kind)
        keys = list(itertools.takewhile(lambda key: key in KEYS, given))
        values = [0.5 if key == "lr" else given[key] for key in keys]
        assert len(keys) >= 3, name
        keys = [key for key in keys if key != "amsgrad" or "LAMB" not in name]
        ours = make(getattr(optim, name), *values)
        for key in keys:
            assert ours.param_groups[0][key] == (0.5 if key == "lr" else given[key]), (name, key)


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
