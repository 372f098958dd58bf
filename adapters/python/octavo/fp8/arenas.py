"""Memory of delayed scaling: the states of all sites in few blocks, so that one call ends a step for all.

A block never moves: a captured CUDA graph has its addresses.
"""

from __future__ import annotations

import ctypes
import sys
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _abi
from .._collectives import all_reduce
from .._engine import device_numbers, stream_of

_SITES = 256  # of a block
_TENSORS = 3  # x, w, dy


class ArenaKey(NamedTuple):
    """What an update of scales asks for, and whose maxima count."""

    device: torch.device
    length: int
    algo: int
    margin: int
    reduce: bool


class Block:
    def __init__(self, key: ArenaKey) -> None:
        self.states = torch.zeros(_SITES, _TENSORS, 2 + key.length, dtype=torch.float32, device=key.device)
        self.used = 0
        kind, index = device_numbers(key.device)
        self.update = _abi.new(
            _abi.Fp8ScaleArgs,
            device_kind=kind,
            device_index=index,
            algo=key.algo,
            margin=key.margin,
            states=self.states.data_ptr(),
            length=key.length,
        )


class Arena:
    def __init__(self, key: ArenaKey) -> None:
        self.key = key
        self._blocks: list[Block] = []
        self._free: list[Tensor] = []

    def take(self) -> Lease:
        """States of a new site: scales of 1, histories of 0."""
        if self._free:
            found = self._free.pop()
        else:
            if not self._blocks or self._blocks[-1].used == _SITES:
                self._blocks.append(Block(self.key))
            block = self._blocks[-1]
            found = block.states[block.used]
            block.used += 1
        found.zero_()
        found[:, :2] = 1
        return Lease(self, found)

    def give_back(self, states: Tensor) -> None:
        """May be called by the collector at any time: nothing is written before the next one takes them."""
        self._free.append(states)

    def slots(self) -> list[Tensor]:
        """Slot 0 of every tensor, which gathers the maximum of the step under way; that of states which
        were given back may hold one, too.
        """
        return [block.states[: block.used, :, 2] for block in self._blocks]

    def end_step(self, skipped: bool) -> None:
        slots = self.slots()
        if skipped:
            for each in slots:
                each.zero_()
            return
        if not slots:
            return
        if self.key.reduce and torch.distributed.is_available() and torch.distributed.is_initialized():
            _maxima_of_all_ranks(slots)
        # An infinite maximum would hold its scale for as long as it is in the history: the step that has it
        # is skipped, or lost anyway.
        infinite = torch.stack([torch.isinf(each).any() for each in slots]).any()
        for each in slots:
            each.masked_fill_(infinite, 0)
        for block in self._blocks:
            block.update.tensors = block.used * _TENSORS
            block.update.stream = stream_of(self.key.device)
            _abi.check(_abi.library().octavo_fp8_update_scales(ctypes.byref(block.update)))


class Lease:
    """States of a site, [3, 2 + length], until nobody holds them: neither the site nor a backward pass that
    is still to come, which has their address.
    """

    __slots__ = ("address", "arena", "states")

    def __init__(self, arena: Arena, states: Tensor) -> None:
        self.arena, self.states, self.address = arena, states, states.data_ptr()

    def __del__(self) -> None:
        if sys is not None and not sys.is_finalizing():
            self.arena.give_back(self.states)


def _maxima_of_all_ranks(slots: list[Tensor]) -> None:
    together = torch.cat([each.reshape(-1) for each in slots])
    all_reduce(together, op=torch.distributed.ReduceOp.MAX)
    for each, reduced in zip(slots, together.split([each.numel() for each in slots]), strict=True):
        each.copy_(reduced.view_as(each))


_arenas: dict[ArenaKey, Arena] = {}


def arena(key: ArenaKey) -> Arena:
    found = _arenas.get(key)
    if found is None:
        found = _arenas[key] = Arena(key)
    return found


def end_all(skipped: bool) -> None:
    for each in _arenas.values():
        each.end_step(skipped)
