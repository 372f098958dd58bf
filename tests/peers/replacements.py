"""octavo.optim in place of a peer's optimizers, in a process that runs that peer's tests.

torchao's tests look at parameters and state dicts alone: its names are bound to our classes and nothing else.
bitsandbytes' tests also read optimizer.state by bitsandbytes' own keys (state1, absmax1, qmap1, ...), where
ours has torch's names. In that process the states of our optimizers find those keys, too. The tensors behind
them are the optimizer's own bytes, and bitsandbytes' own dequantize_blockwise decodes them.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from octavo import optim
from octavo.checkpoint.decoding import our_map
from octavo.optim.tracked import Entry

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
        if name != "Optimizer" and hasattr(theirs, name):
            setattr(theirs, name, getattr(optim, name))
    Entry.__missing__ = their_key  # type: ignore[attr-defined]


def their_key(entry: Mapping[str, Any], key: str) -> torch.Tensor:
    """What bitsandbytes would have under `key` in the state of one parameter, as `__missing__` of ours."""
    kind, slot = key[:-1], key[-1:]
    if slot not in ("1", "2") or kind not in ("state", "absmax", "qmap"):
        raise KeyError(key)
    names = ("exp_avg", "momentum_buffer") if slot == "1" else ("exp_avg_sq",)
    moment = next((name for name in names if name in entry), None)
    if moment is None:
        raise KeyError(key)
    if kind == "qmap":
        return our_map("first" if slot == "1" else "second", "8bit").to(entry[moment].device)
    found: torch.Tensor = entry[moment] if kind == "state" else entry[f"{moment}_scale"]
    return found
