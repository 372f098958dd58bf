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
        self.leased = 0  # of those, held by a site or a backward pass
        kind, index = device_numbers(key.device)
        self.update = _abi.new(
            _abi.Fp8ScaleArgs,
            device_kind=kind,
            device_index=index,
            algo=key.algo,
            margin=key.margin,
            length=key.length,
        )

    def update_scales(self, begin: int, end: int, stream: int | None) -> None:
        """Updates the scales of the sites from `begin` up to `end`."""
        self.update.states = self.states[begin].data_ptr()
        self.update.tensors = (end - begin) * _TENSORS
        self.update.stream = stream
        _abi.check(_abi.library().octavo_fp8_update_scales(ctypes.byref(self.update)))


_Run = tuple[Block, int, int]  # the sites of a block from one number up to another


class Arena:
    def __init__(self, key: ArenaKey) -> None:
        self.key = key
        self._blocks: list[Block] = []
        self._free: list[tuple[Block, int]] = []

    def take(self) -> Lease:
        """States of a new site: scales of 1, histories of 0."""
        if self._free:
            block, number = self._free.pop()
        else:
            if not self._blocks or self._blocks[-1].used == _SITES:
                self._blocks.append(Block(self.key))
            block = self._blocks[-1]
            number = block.used
            block.used += 1
        found = block.states[number]
        found.zero_()
        found[:, :2] = 1
        block.leased += 1
        return Lease(self, block, number)

    def give_back(self, block: Block, number: int) -> None:
        """May be called by the collector at any time: nothing is written before the next one takes them."""
        block.leased -= 1
        self._free.append((block, number))

    def runs(self) -> list[_Run]:
        """Returns the runs of all sites, including states that were given back."""
        return [(block, 0, block.used) for block in self._blocks]

    def runs_of(self, leases: list[Lease]) -> list[_Run]:
        """Returns the runs of these sites: one run for a block that has no other sites in use."""
        numbers: dict[Block, list[int]] = {}
        for lease in leases:
            numbers.setdefault(lease.block, []).append(lease.number)
        found: list[_Run] = []
        for block in (block for block in self._blocks if block in numbers):
            some = sorted(numbers[block])
            if len(some) == block.leased:
                found.append((block, 0, block.used))
                continue
            starts = [n for i, n in enumerate(some) if i == 0 or some[i - 1] != n - 1]
            ends = [n + 1 for i, n in enumerate(some) if i + 1 == len(some) or some[i + 1] != n + 1]
            found += [(block, begin, end) for begin, end in zip(starts, ends, strict=True)]
        return found

    def reduces(self) -> bool:
        distributed = torch.distributed
        return self.key.reduce and distributed.is_available() and distributed.is_initialized()

    def end_step(self, leases: list[Lease] | None, skipped: bool = False) -> None:
        """Ends the step of these sites, or of all."""
        runs = self.runs() if leases is None else self.runs_of(leases)
        # Slot 0 of every tensor gathers the maximum of the step under way.
        slots = [block.states[begin:end, :, 2] for block, begin, end in runs]
        if skipped:
            for each in slots:
                each.zero_()
            return
        if not slots:
            return
        if self.reduces():
            # Sites may have other places in the blocks of another rank. Their order is the same.
            _maxima_of_all_ranks(slots if leases is None else [lease.states[:, 2] for lease in leases])
        # An infinite maximum would hold its scale for as long as it is in the history: the step that has it
        # is skipped, or lost anyway.
        together = torch.cat([each.reshape(-1) for each in slots])
        _copy_parts(slots, together.masked_fill_(torch.isinf(together).any(), 0))
        for block, begin, end in runs:
            block.update_scales(begin, end, stream_of(self.key.device))


class Lease:
    """States of a site, [3, 2 + length], until nobody holds them: neither the site nor a backward pass that
    is still to come, which has their address.
    """

    __slots__ = ("address", "arena", "block", "number", "states")

    def __init__(self, arena: Arena, block: Block, number: int) -> None:
        self.arena, self.block, self.number = arena, block, number
        self.states = block.states[number]
        self.address = self.states.data_ptr()

    def __del__(self) -> None:
        if sys is not None and not sys.is_finalizing():
            self.arena.give_back(self.block, self.number)


def _maxima_of_all_ranks(slots: list[Tensor]) -> None:
    together = torch.cat([each.reshape(-1) for each in slots])
    all_reduce(together, op=torch.distributed.ReduceOp.MAX)
    _copy_parts(slots, together)


def _copy_parts(slots: list[Tensor], together: Tensor) -> None:
    """Copies consecutive parts of one tensor to the slots, with one call for all of them."""
    parts = together.split([each.numel() for each in slots])
    torch._foreach_copy_(slots, [part.view_as(each) for part, each in zip(parts, slots, strict=True)])


_arenas: dict[ArenaKey, Arena] = {}


def arena(key: ArenaKey) -> Arena:
    found = _arenas.get(key)
    if found is None:
        found = _arenas[key] = Arena(key)
    return found


def end_all(skipped: bool) -> None:
    for each in _arenas.values():
        each.end_step(None, skipped)


def end_of(leases: list[Lease]) -> None:
    """Ends the step of these sites alone."""
    by_arena: dict[ArenaKey, list[Lease]] = {}
    for lease in leases:
        by_arena.setdefault(lease.arena.key, []).append(lease)
    for key, arena in _arenas.items():  # in one order on all ranks
        if key in by_arena:
            arena.end_step(by_arena[key])
