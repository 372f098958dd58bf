"""Memory of delayed scaling: the states of all sites in few blocks, so that one call ends a step for many.

A block never moves, because a captured CUDA graph has its addresses.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _abi
from .._collectives import all_reduce
from .._engine import device_numbers, stream_of

_SITES = 256  # of a block
_TENSORS = 3  # x, w, dy


class ArenaKey(NamedTuple):
    """The options of an update of scales. If `reduce` is True, ranks share the maxima."""

    device: torch.device
    length: int
    algo: int
    margin: int
    reduce: bool


class Arena:
    def __init__(self, key: ArenaKey) -> None:
        self.key = key
        self._blocks: list[Tensor] = []  # [_SITES, _TENSORS, 2 + length]
        self._used = 0  # sites; some of them may be free again
        self.free: list[int] = []

    def lease(self) -> Lease:
        """Returns the states of a new site: scales of 1, histories of 0."""
        if self.free:
            number = self.free.pop()
        else:
            number, self._used = self._used, self._used + 1
            if number == _SITES * len(self._blocks):
                shape = (_SITES, _TENSORS, 2 + self.key.length)
                self._blocks.append(torch.zeros(shape, dtype=torch.float32, device=self.key.device))
        found = Lease(self, number, self._blocks[number // _SITES][number % _SITES])
        found.states.zero_()
        found.states[:, :2] = 1
        return found

    def _joined(self, numbers: Iterable[int]) -> list[Tensor]:
        """Returns the states of these sites, with one tensor for consecutive sites of a block."""
        runs: list[list[int]] = []
        for number in sorted(numbers):
            if runs and runs[-1][1] == number and number % _SITES:
                runs[-1][1] += 1
            else:
                runs.append([number, number + 1])
        return [self._blocks[a // _SITES][a % _SITES : (b - 1) % _SITES + 1] for a, b in runs]

    def reduces(self) -> bool:
        distributed = torch.distributed
        return self.key.reduce and distributed.is_available() and distributed.is_initialized()

    def end_step(self, leases: list[Lease] | None, skipped: bool = False) -> None:
        """Ends the step of these sites, or of all."""
        numbers = range(self._used) if leases is None else (lease.number for lease in leases)
        states = self._joined(numbers)
        # Slot 0 of every history gathers the maximum of the current step.
        slots = [each[:, :, 2] for each in states]
        if skipped:
            for each in slots:
                each.zero_()
            return
        if not slots:
            return
        if self.reduces():
            # Sites may be at other places of the blocks on another rank. Their order is the same.
            _maxima_of_all_ranks(slots if leases is None else [lease.states[:, 2] for lease in leases])
        # An infinite maximum would hold its scale for as long as it is in the history. The step that has one
        # is skipped, or lost anyway.
        together = torch.cat([each.reshape(-1) for each in slots])
        _copy_parts(slots, together.masked_fill_(torch.isinf(together).any(), 0))
        key = self.key
        kind, index = device_numbers(key.device)
        update = _abi.new(
            _abi.Fp8ScaleArgs, device_kind=kind, device_index=index, stream=stream_of(key.device)
        )
        update.algo, update.margin, update.length = key.algo, key.margin, key.length
        for each in states:
            update.states, update.tensors = each.data_ptr(), _TENSORS * len(each)
            _abi.check(_abi.library().octavo_fp8_update_scales(ctypes.byref(update)))


class Lease:
    """States of a site, [3, 2 + length]. They are free when neither the site nor a pending backward pass,
    which has their address, holds the lease.
    """

    __slots__ = ("address", "arena", "number", "states")

    def __init__(self, arena: Arena, number: int, states: Tensor) -> None:
        self.arena, self.number, self.states = arena, number, states
        self.address = states.data_ptr()

    def __del__(self) -> None:
        # The collector may call this at any time: nothing is written before the next lease().
        if sys is not None and not sys.is_finalizing():
            self.arena.free.append(self.number)


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
    """Ends the step of these sites only."""
    for arena in _arenas.values():  # in one order on all ranks
        if own := [lease for lease in leases if lease.arena is arena]:
            arena.end_step(own)
