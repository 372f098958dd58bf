"""octavo.optim in place of a peer's optimizers, in a process that runs that peer's tests.

torchao's tests look at parameters and state dicts alone: its names are bound to our classes and nothing else.
bitsandbytes' tests also read optimizer.state by bitsandbytes' own keys (state1, absmax1, qmap1, ...), where
ours has torch's names. In that process the states of our optimizers find those keys, too. The tensors behind
them are the optimizer's own bytes, and bitsandbytes' own dequantize_blockwise decodes them.
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Mapping
from typing import Any

import torch
from octavo import optim
from octavo._describe import Algorithm, Slot, algorithms
from octavo.checkpoint.decoding import our_map
from octavo.checkpoint.saved import known_moments
from octavo.optim.states.tracked_state import Entry

TORCHAO = ("Adam4bit", "Adam8bit", "AdamFp8", "AdamW4bit", "AdamW8bit", "AdamWFp8", "CPUOffloadOptimizer")


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
    # A test asks `optimizer.args` for an option that is in our groups.
    optim.Optimizer.args = property(  # type: ignore[attr-defined]
        lambda optimizer: types.SimpleNamespace(**optimizer.param_groups[0])
    )


def their_key(entry: Mapping[str, Any], key: str) -> torch.Tensor:
    """What bitsandbytes would have under `key` in the state of one parameter, as `__missing__` of ours."""
    if key == "unorm_vec":  # the norm of the update, which ours does not keep
        return entry["momentum_buffer"].norm()
    kind, slot = key[:-1], key[-1:]
    names = _slots(entry, f"state{slot}")
    if kind not in ("state", "absmax", "qmap") or not names:
        raise KeyError(key)
    if kind == "qmap":
        return our_map(known_moments()[names[0]], "8bit").to(entry[names[0]].device)
    found = [entry[name if kind == "state" else f"{name}_scale"] for name in names]
    return torch.stack(found) if len(found) > 1 else found[0]


def _slots(entry: Mapping[str, Any], peer: str) -> list[str]:
    """Our names of what it keeps under `peer`: one, or two where it stacks them (state1[0] and state1[1])."""

    def here(described: Algorithm) -> list[Slot]:
        return [slot for slot in described.all_slots.values() if slot.peer and slot.name in entry]

    likely = max(algorithms().values(), key=lambda described: len(here(described)))
    return [slot.name for slot in sorted(here(likely), key=lambda s: s.peer) if slot.peer.startswith(peer)]
