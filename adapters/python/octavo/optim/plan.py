"""What stays the same from step to step in one parameter group: the native groups, and how to tell that they
still fit.

A plan is made by examining everything. It is reused while the parameters stay at their addresses and the same
ones have gradients. Nothing about a gradient is trusted from one step to the next: address, size, dtype,
device and memory order are read at every step, in loops that run in C.
"""

from __future__ import annotations

import array
import dataclasses
import itertools
import operator
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .._codec import NATIVE_STEP, STEP
from .._engine import NativeGroup, grad_views
from .._shards import is_sharded, local, reduction_groups
from .tracked import Changes, Entry, Mirror, States

NormKey = tuple[torch.device, tuple[int, ...]]  # device, and the process groups that share the gradients

_COUNTS = (STEP, NATIVE_STEP)
_address = torch.Tensor.data_ptr
_bytes = operator.attrgetter("nbytes")
_device = torch.Tensor.get_device
_contiguous = torch.Tensor.is_contiguous
_numel = torch.Tensor.numel
_size = torch.Tensor.size
_stride = torch.Tensor.stride
_version = operator.attrgetter("_version")


@dataclasses.dataclass(slots=True)
class Cohort:
    """Parameters of one device with one step count: one native call."""

    native: NativeGroup
    members: list[int] | None  # places among the plan's gradients; None: all of them
    step: Tensor  # shared by the members' states
    # Of members whose count somebody outside was given: they get the value after each step.
    mirrors: list[Mirror] = dataclasses.field(default_factory=list)

    def count_mirrors(self) -> None:
        torch._foreach_copy_([mirror.own for mirror in self.mirrors], [self.step] * len(self.mirrors))
        for mirror in self.mirrors:
            mirror.version = mirror.own._version


@dataclasses.dataclass(slots=True)
class NormPart:
    """Gradients whose norm is taken together."""

    key: NormKey
    groups: tuple[Any, ...]  # process groups to sum over
    members: list[int] | None
    views: array.array[int]  # octavo_grad_view of each, but for the address


@dataclasses.dataclass(slots=True)
class Ready:
    """A plan with the gradients of this step: `grads` are local, in the parameters' memory order."""

    plan: Plan
    grads: list[Tensor]
    addresses: array.array[int]

    def addresses_of(self, members: list[int] | None) -> array.array[int]:
        if members is None:
            return self.addresses
        return array.array("Q", [self.addresses[i] for i in members])


def norm_key(param: Tensor) -> tuple[NormKey, tuple[Any, ...]]:
    """Which norm its gradient is a part of, and the process groups to sum that over."""
    groups = reduction_groups(param)
    return (local(param).device, tuple(id(group) for group in groups)), groups


def shared_norms(params: Iterable[Tensor]) -> dict[NormKey, tuple[Any, ...]]:
    """The norms that other ranks have parts of, in the parameters' order."""
    keys = (norm_key(param) for param in params if is_sharded(param))
    return {key: groups for key, groups in keys if groups}


class Plan:
    def __init__(self, params: Sequence[Tensor], present: list[bool], key: tuple[Any, ...]) -> None:
        self.params = list(params)
        self.key = key  # of the options that a native group is made for
        self.present = present
        self.cohorts: list[Cohort] = []
        self.shared = shared_norms(params)
        self.sharded = any(is_sharded(p) for p in params)
        self.active = [p for p, here in zip(params, present, strict=True) if here]
        locals_ = self._locals(self.params)
        self.addresses = list(map(_address, locals_))
        self._bytes = list(map(_bytes, locals_))
        self._strides = list(map(_stride, locals_))
        active = [t for t, here in zip(locals_, present, strict=True) if here]
        self.numels = list(map(_numel, active))
        self.sizes = list(map(_size, active))
        self.devices = list(map(_device, active))
        self.contiguous = all(map(_contiguous, active))
        self.strides = list(map(_stride, active))
        self.bumped = [p for p in self.active if not p.is_inference()]
        # What the first gradients show: first_grads.
        self.dtypes: list[torch.dtype] = []
        self.norm_parts: list[NormPart] = []
        # Where the states lie: watch.
        self._entries: list[weakref.ref[Entry]] = []
        self._tensors: list[Tensor] = []
        self._held: list[int] = []
        self._handed: list[Entry] = []  # those that somebody outside has got, and their tensors
        self._handed_tensors: list[Tensor] = []
        self._versions: list[int] = []
        self._changes: tuple[Changes | None, int] = (None, 0)
        self._seen = array.array("Q")  # addresses of gradients that were looked at in full

    def _locals(self, tensors: list[Tensor]) -> list[Tensor]:
        return [local(t) for t in tensors] if self.sharded else tensors

    def first_grads(self, grads: list[Tensor]) -> list[Tensor]:
        """Takes note of the local gradients that the plan is made for; returns them in memory order."""
        self.dtypes = [g.dtype for g in grads]
        by_key: dict[NormKey, tuple[tuple[Any, ...], list[int]]] = {}
        for place, param in enumerate(self.active):
            key, groups = norm_key(param)
            by_key.setdefault(key, (groups, []))[1].append(place)
        for key, (groups, members) in by_key.items():
            everyone = len(members) == len(grads)
            views = grad_views([grads[i] for i in members])
            self.norm_parts.append(NormPart(key, groups, None if everyone else members, views))
        return self.in_memory_order(grads)

    def watch(self, states: States) -> None:
        """Remembers the addresses of the states without keeping them alive: code that moves states to another
        device for a while wants their memory back.
        """
        self._entries = [weakref.ref(states[p]) for p in self.active]
        self._hold(states)
        self._versions = list(map(_version, self._handed_tensors))
        self._held = list(map(_address, self._tensors))

    def _hold(self, states: States) -> None:
        # Without the counts: a step asks those themselves.
        entries = [states[p] for p in self.active]
        items = itertools.chain.from_iterable(map(dict.items, entries))
        self._tensors = [value for key, value in items if key not in _COUNTS and isinstance(value, Tensor)]
        self._handed = [entry for entry in entries if entry.handed]
        self._handed_tensors = [tensor for entry in self._handed for tensor in entry.watched().values()]
        for cohort in self.cohorts:
            found = [entries[i].mirror for i in self._members(cohort)]
            cohort.mirrors = [mirror for mirror in found if mirror is not None]
        self._changes = (states.changes, states.changes.count)
        states.changes.tell(self)

    def let_go(self) -> None:
        self._tensors, self._handed, self._handed_tensors = [], [], []

    def _members(self, cohort: Cohort) -> Iterable[int]:
        return range(len(self.active)) if cohort.members is None else cohort.members

    def tensors(self) -> list[Tensor]:
        """The states' tensors."""
        entries = [entry for ref in self._entries if (entry := ref()) is not None]
        values = itertools.chain.from_iterable(map(dict.values, entries))
        return [value for value in values if isinstance(value, Tensor)]

    def _same_entries(self, states: States) -> bool:
        """Whether the states are the dictionaries they were, with the step counts of their cohorts."""
        found = [states.get(p) for p in self.active]
        if any(entry is None or entry is not ref() for entry, ref in zip(found, self._entries, strict=True)):
            return False
        return all(found[i].counts(cohort.step) for cohort in self.cohorts for i in self._members(cohort))  # type: ignore[union-attr]

    def _written(self) -> bool:
        """Whether somebody has written to a state in a way that changes more than its tensors' values."""
        if any(not m.repeats(cohort.step) for cohort in self.cohorts for m in cohort.mirrors):
            return True
        if self._handed and (now := list(map(_version, self._handed_tensors))) != self._versions:
            if any(entry.rewritten() for entry in self._handed):
                return True
            for entry in self._handed:
                entry.seen()
            self._versions = now
        return False

    def _states_moved(self, states: States) -> bool:
        if (states.changes, states.changes.count) != self._changes:
            if not self._same_entries(states):
                return True
            self._hold(states)
            self._versions = []
        if self._written():
            return True
        # Each of them is checked: code that moves memory by .data may move one moment and not the other.
        return list(map(_address, self._tensors)) != self._held

    def ready(self, params: Sequence[Tensor], key: tuple[Any, ...], states: States) -> Ready | None:
        """The gradients of this step, or None where the plan no longer fits."""
        if key != self.key or len(params) != len(self.params):
            return None
        if not all(map(operator.is_, params, self.params)):
            return None
        found = [p.grad for p in params]
        if [g is not None for g in found] != self.present:
            return None
        here = self._locals(self.params)
        if list(map(_address, here)) != self.addresses or list(map(_bytes, here)) != self._bytes:
            return None
        if self._states_moved(states):
            return None
        if (
            not (self.contiguous and all(map(_contiguous, here)))
            and list(map(_stride, here)) != self._strides
        ):
            return None
        grads = self._locals(found if len(found) == len(self.active) else [g for g in found if g is not None])
        try:
            addresses = array.array("Q", map(_address, grads))
            if addresses != self._seen and 0 in addresses:  # empty, or the result of a collective under way
                grads = list(map(local, grads))
                addresses = array.array("Q", map(_address, grads))
            if list(map(_numel, grads)) != self.numels or [g.dtype for g in grads] != self.dtypes:
                return None
            # Torch refuses a gradient of another shape or device. A gradient that is set by .data has a new
            # address, or the same length as the one before.
            if addresses != self._seen:
                if list(map(_size, grads)) != self.sizes or list(map(_device, grads)) != self.devices:
                    return None
                self._seen = addresses
        except RuntimeError:  # a gradient without memory of its own: sparse, for one
            return None
        ordered = self.in_memory_order(grads)
        if ordered is not grads:
            addresses = array.array("Q", map(_address, ordered))
        return Ready(self, ordered, addresses)

    def in_memory_order(self, grads: list[Tensor]) -> list[Tensor]:
        """The gradients with the strides of their parameters; copies where the strides differ."""
        if self.contiguous:
            if all(map(_contiguous, grads)):
                return grads
        elif list(map(_stride, grads)) == self.strides:
            return grads
        return [
            g if g.stride() == stride or g.numel() < 2 else _copy(g, stride)
            for g, stride in zip(grads, self.strides, strict=True)
        ]


def _copy(grad: Tensor, stride: tuple[int, ...]) -> Tensor:
    return torch.empty_strided(grad.shape, stride, dtype=grad.dtype, device=grad.device).copy_(grad)


def turns_of(tensors: Sequence[Tensor]) -> list[int]:
    """When each can be written: 0, or, where it shares memory with earlier ones, after all of those. One call
    writes its tensors in any order.
    """
    spans = [(t.data_ptr(), t.data_ptr() + t.nbytes) for t in tensors]
    filled = sorted(span for span in spans if span[0] < span[1])
    turns = [0] * len(spans)
    if all(left[1] <= right[0] for left, right in itertools.pairwise(filled)):
        return turns
    for place, (begin, end) in enumerate(spans):
        before = [turns[i] for i in range(place) if begin < spans[i][1] and spans[i][0] < end]
        turns[place] = max(before) + 1 if before and begin < end else 0
    return turns
