"""octavo.optim in place of a peer's optimizers, in a process that runs that peer's tests.

torchao's tests look at parameters and state dicts alone: its names are bound to our classes and nothing else.
bitsandbytes' tests also read optimizer.state by bitsandbytes' own keys (state1, absmax1, qmap1, ...), where
ours has torch's names. There a class is replaced by one whose states can be read by both; the tensors behind
the keys are the optimizer's own bytes, and bitsandbytes' own dequantize_blockwise decodes them.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from octavo import optim
from octavo.checkpoint.decoding import our_map

TORCHAO = ("Adam4bit", "Adam8bit", "AdamFp8", "AdamW4bit", "AdamW8bit", "AdamWFp8")


def replace_torchao() -> None:
    theirs = importlib.import_module("torchao.optim")
    for name in TORCHAO:
        setattr(theirs, name, getattr(optim, name))
    # Private, but a test uses it: AdamW without quantized states, for its bf16_stochastic_round.
    theirs._AdamW = optim.AdamW


def replace_bitsandbytes() -> None:
    """Every name of bitsandbytes.optim that octavo.optim has. The others stay, so that the file imports."""
    theirs = importlib.import_module("bitsandbytes").optim
    for name in optim.__all__:
        ours = getattr(optim, name)
        if name != "Optimizer" and hasattr(theirs, name):
            is_class = isinstance(ours, type) and issubclass(ours, optim.Optimizer)
            setattr(theirs, name, _readable(ours) if is_class else ours)


def _readable(ours: type[optim.Optimizer]) -> type[optim.Optimizer]:
    """`ours`, its states readable by bitsandbytes' keys."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        ours.__init__(self, *args, **kwargs)
        self.state.default_factory = _Entry

    return type(ours.__name__, (ours,), {"__init__": __init__, "__module__": ours.__module__})


class _Entry(dict):
    """The state of one parameter. Keys that it does not have, but bitsandbytes would, are looked up."""

    def __missing__(self, key: str) -> torch.Tensor:
        kind, slot = key[:-1], key[-1:]
        if slot not in ("1", "2") or kind not in ("state", "absmax", "qmap"):
            raise KeyError(key)
        names = ("exp_avg", "momentum_buffer") if slot == "1" else ("exp_avg_sq",)
        moment = next((name for name in names if name in self), None)
        if moment is None:
            raise KeyError(key)
        if kind == "qmap":
            return our_map("first" if slot == "1" else "second", "8bit").to(self[moment].device)
        return self[moment] if kind == "state" else self[f"{moment}_scale"]
