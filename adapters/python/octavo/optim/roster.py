"""Who takes part in a step: the parameters as the engine knows them, and whether they still are so.

Everything about a parameter is examined once. After that a step compares, in loops that run in C: where the
parameters lie and how long they are, what their states' dictionaries have noted, and of gradients, of which
nothing is trusted from one step to the next, address, size, dtype, device and memory order.
"""

from __future__ import annotations

import array
import dataclasses
import operator
import struct
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._collectives import release_at_exit
from .._engine import DTYPES
from .._shards import is_sharded, local, reduction_groups
from .states.tracked_state import ChangeCount, Entry, States

_CPU = torch.device("cpu")
_address = torch.Tensor.data_ptr
_bytes = operator.attrgetter("nbytes")
_device = torch.Tensor.get_device
_contiguous = torch.Tensor.is_contiguous
_numel = torch.Tensor.numel
_size = torch.Tensor.size
_stride = torch.Tensor.stride
_version = operator.attrgetter("_version")


@dataclasses.dataclass(slots=True, eq=False)
class Member:
    """One parameter, and what the engine was told of it."""

    param: Tensor
    handle: int
    group: int
    index: int  # in the group
    place: int  # among all
    groups: tuple[Any, ...]  # process groups that share its gradient
    address: int | None = None  # None: the engine knows nothing that still holds
    bytes: int = 0
    numel: int = 0
    size: torch.Size = dataclasses.field(default_factory=torch.Size)
    stride: tuple[int, ...] = ()
    contiguous: bool = True
    device: torch.device = _CPU
    states: list[int] = dataclasses.field(default_factory=list)  # addresses
    entry: weakref.ref[Entry] | None = None
    # A count on a device, which the engine does not read.
    count: weakref.ref[Tensor] | None = None
    count_version: int = 0

    def record_registration(self, entry: Entry) -> None:
        """The engine was told of the parameter and its state as they are."""
        here = local(self.param)
        self.address, self.bytes, self.numel = here.data_ptr(), here.nbytes, here.numel()
        self.size, self.stride, self.contiguous = here.size(), here.stride(), here.is_contiguous()
        self.device = here.device
        self.states = [tensor.data_ptr() for tensor in entry.tensors()]
        self.entry = weakref.ref(entry)
        count = entry.step_count()
        self.count = None if count.device.type == "cpu" else weakref.ref(count)
        self.count_version = 0 if self.count is None else count._version
        entry.known, entry.steps = True, None

    def state(self) -> Entry | None:
        """The state that the engine knows, where it is still there."""
        return None if self.entry is None else self.entry()

    def has_registered(self, entry: Any) -> bool:
        """Whether it has this state, as the engine knows it."""
        return entry is not None and self.state() is entry and entry.known

    def count_was_written(self) -> bool:
        """Whether somebody has written to the count on a device."""
        count = None if self.count is None else self.count()
        return count is not None and count._version != self.count_version

    def known_steps(self, entry: Entry, count: Tensor) -> int:
        """-2: the engine knows what this count holds; -1: it does not."""
        same = self.state() is entry and self.count is not None and self.count() is count
        return -2 if same and not self.count_was_written() else -1

    def has_moved(self) -> bool:
        here = local(self.param)
        # An empty tensor has the same address on every device.
        now = (here.data_ptr(), here.nbytes, here.stride(), here.device)
        return now != (self.address, self.bytes, self.stride, self.device)


class StepTensors:
    """Members that have a gradient, in bulk. A flag of 2: it was taken to host memory."""

    def __init__(self, members: Sequence[Member], flags: list[Any], sharded: bool) -> None:
        self.members, self.flags, self.sharded = members, flags, sharded
        self.taken = [flag == 2 for flag in flags if flag]
        self.here = [m for m, taken in zip(members, self.taken, strict=True) if not taken]
        self.params = [m.param for m in members]
        self.known = all(m.address is not None for m in members)
        self.addresses = [m.address for m in members]
        self.bytes = [m.bytes for m in members]
        self.strides = [m.stride for m in members]
        self.contiguous = all(m.contiguous for m in members)
        # Of the gradients that are here.
        self.numels = [m.numel for m in self.here]
        self.sizes = [m.size for m in self.here]
        self.grad_strides = [m.stride for m in self.here]
        self.devices = [m.device.index if m.device.type != "cpu" else -1 for m in self.here]
        self.groups = sorted({m.group for m in members})
        self.parts: Any = None  # of the norm
        self.places: Any = None  # of the states, where any are offloaded
        self.among: list[Member] | None = None  # those that were asked for; None: all
        self.bumped = [p for p in self.params if not p.is_inference()]
        self._handles = array.array("I", [m.handle for m in members])
        self._pack = struct.Struct(f"{len(members)}Q")
        self._grads = array.array("Q", bytes(8 * len(members)))
        self.handles_at, self.grads_at = self._handles.buffer_info()[0], self._grads.buffer_info()[0]
        # Of the gradients of the step before.
        self.dtypes: list[torch.dtype] = []
        self.dtype_numbers = b""
        self._seen: list[int] = []  # addresses of those that were looked at in full
        self._packed: list[int] = []

    def set_gradients(self, grads: list[Tensor]) -> list[Tensor] | None:
        """Takes gradients for the next step: local, in the parameters' memory order. None where they, or the
        parameters, are not what is known.
        """
        if not self.known:
            return None
        here = [local(p) for p in self.params] if self.sharded else self.params
        if list(map(_address, here)) != self.addresses or list(map(_bytes, here)) != self.bytes:
            return None
        if not (self.contiguous and all(map(_contiguous, here))) and list(map(_stride, here)) != self.strides:
            return None
        if self.sharded:
            grads = list(map(local, grads))
        try:
            addresses = list(map(_address, grads))
            same = addresses == self._seen
            if same:
                addresses = self._seen
            if not same and 0 in addresses:  # empty, or the result of a collective under way
                grads = list(map(local, grads))
                addresses = list(map(_address, grads))
            # Torch refuses a gradient of another shape or device. A gradient that is set by .data has a new
            # address, or the same length as the one before.
            if same:
                if list(map(_numel, grads)) != self.numels:
                    return None
            elif list(map(_size, grads)) != self.sizes or list(map(_device, grads)) != self.devices:
                return None
            dtypes = [g.dtype for g in grads]
            if (dtypes != self.dtypes or not dtypes) and not self._set_dtypes(dtypes):
                return None
        except RuntimeError:  # a gradient without memory of its own: sparse, for one
            return None
        self._seen = addresses
        ordered = self._in_memory_order(grads)
        if ordered is not grads:
            addresses = list(map(_address, ordered))
        if addresses is not self._packed:
            if addresses != self._packed:
                self._pack.pack_into(self._grads, 0, *self._with_zeros(addresses))
            self._packed = addresses
        return ordered

    def _set_dtypes(self, dtypes: list[torch.dtype]) -> bool:
        if not DTYPES.keys() >= set(dtypes):
            return False
        self.dtype_numbers = bytes(self._with_zeros([DTYPES[dtype] for dtype in dtypes]))
        self.dtypes = dtypes  # the last, also where an exception comes between
        return True

    def _with_zeros(self, values: list[int]) -> list[int]:
        """Values of the gradients that are here, with zeros for those that were taken."""
        if len(values) == len(self.taken):
            return values
        rest = iter(values)
        return [0 if taken else next(rest) for taken in self.taken]

    def _in_memory_order(self, grads: list[Tensor]) -> list[Tensor]:
        """The gradients with the strides of their parameters; copies where the strides differ."""
        if self.contiguous:
            if all(map(_contiguous, grads)):
                return grads
        elif list(map(_stride, grads)) == self.grad_strides:
            return grads
        return [
            g if g.stride() == stride or g.numel() < 2 else _copy(g, stride)
            for g, stride in zip(grads, self.grad_strides, strict=True)
        ]


def _copy(grad: Tensor, stride: tuple[int, ...]) -> Tensor:
    return torch.empty_strided(grad.shape, stride, dtype=grad.dtype, device=grad.device).copy_(grad)


class Roster:
    """All parameters of an optimizer, in the order of its groups."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.params: list[Tensor] = []
        self.sharded: list[Member] = []
        self._lists: list[list[Tensor]] = []  # of the groups
        self._by_id: dict[int, Member] = {}
        self.handles = 0  # given out so far
        self._removed: list[int] = []  # handles of parameters that were taken out
        self._unregistered: dict[int, Member] = {}  # of which the engine knows what is no longer so
        self._step_tensors: dict[int, StepTensors] = {}
        # Of the states that somebody outside has got.
        self._changes: tuple[ChangeCount | None, int] = (None, 0)
        self._exposed: list[Member] = []
        self._addresses: list[int] = []
        self._versions: list[int] = []

    def update_members(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Takes over parameters that were put into the groups, or taken out."""
        lists = [group["params"] for group in groups]
        if list(map(len, lists)) == list(map(len, self._lists)) and all(
            all(map(operator.is_, new, old)) for new, old in zip(lists, self._lists, strict=True)
        ):
            return
        before, by_id, members = dict(self._by_id), dict[int, Member](), list[Member]()
        for number, params in enumerate(lists):
            for index, param in enumerate(params):
                place = len(members)
                member = before.pop(id(param), None)
                if member is None:
                    member = Member(param, self.handles, number, index, place, reduction_groups(param))
                    self.handles += 1
                elif (member.group, member.place) != (number, place):
                    self.mark_unregistered([member])
                member.group, member.index, member.place = number, index, place
                members.append(member)
                by_id[id(param)] = member
        self._removed += [member.handle for member in before.values()]
        self._step_tensors, self._changes = {}, (None, 0)
        self.members, self._by_id = members, by_id
        self.params = [member.param for member in members]
        self.sharded = [member for member in members if is_sharded(member.param)]
        if self.sharded:
            release_at_exit()
        self._lists = [list(params) for params in lists]  # the last, also where an exception comes between

    def find_member(self, param: Tensor) -> Member | None:
        return self._by_id.get(id(param))

    def member_of(self, param: Tensor) -> Member:
        return self._by_id[id(param)]

    def mark_unregistered(self, members: Sequence[Member]) -> None:
        """What the engine knows of them is no longer so."""
        for member in members:
            member.address = None
            self._unregistered[member.handle] = member
        if members:
            self._step_tensors, self._changes = {}, (None, 0)

    def registered(self) -> list[Member]:
        return [member for member in self.members if member.address is not None]

    def unregistered(self) -> list[Member]:
        return list(self._unregistered.values())

    def pop_removed_handles(self, kept: Sequence[Member]) -> list[int]:
        """Handles that the engine is to forget; `kept` it is told of anew."""
        if not self._removed and not self._unregistered:
            return []
        for member in kept:
            self._unregistered.pop(member.handle, None)
        for member in self._unregistered.values():
            member.entry = None
        gone, self._removed, self._unregistered = dict.fromkeys([*self._removed, *self._unregistered]), [], {}
        return list(gone)

    def watch_registered(self, members: Sequence[Member], changes: ChangeCount) -> None:
        """The engine was told of them as they are; nobody else has changed a state meanwhile."""
        self._step_tensors = {key: chosen for key, chosen in self._step_tensors.items() if chosen.known}
        if self._changes[0] is changes:
            self._watch_states(changes, [*self._exposed, *members])

    def step_tensors(self, flags: list[Any], alone: list[Member] | None) -> StepTensors:
        """Those members whose flag is set, of all or of some, which are known by the first of them."""
        key = -1 if alone is None else alone[0].handle
        found = self._step_tensors.get(key)
        if (
            found is None
            or not found.known
            or found.flags != flags
            or (alone is not None and found.among != alone)
        ):
            among = self.members if alone is None else alone
            some = [member for member, flag in zip(among, flags, strict=True) if flag]
            found = self._step_tensors[key] = StepTensors(some, flags, bool(self.sharded))
            found.among = alone
        return found

    def check_states(self, states: States) -> None:
        """Drops members whose states were changed, moved, or written so that more than values changed."""
        changes = states.changes
        if self._changes != (changes, changes.count):
            self.mark_unregistered(
                [m for m in self.registered() if not m.has_registered(states.get(m.param))]
            )
            self._watch_states(changes, self.registered())
        if not self._exposed:
            return
        if list(map(_address, changes.watched_tensors)) != self._addresses:
            self.mark_unregistered(
                [m for m in self._exposed if [t.data_ptr() for t in m.state().tensors()] != m.states]
            )  # type: ignore[union-attr]
        watched = [tensor for tensor in changes.watched_tensors if not tensor.is_inference()]
        if (versions := list(map(_version, watched))) != self._versions:
            for member in self._exposed:
                entry: Any = member.state()
                if entry.rewritten_codes() or member.count_was_written():
                    self.mark_unregistered([member])
                else:
                    entry.record_versions()
            self._versions = versions

    def _watch_states(self, changes: ChangeCount, members: Sequence[Member]) -> None:
        """Looks from now on at the states that somebody outside has got."""
        self._exposed = [m for m in members if (entry := m.state()) is not None and entry.exposed]
        changes.watched_tensors = [tensor for m in self._exposed for tensor in m.state().tensors()]  # type: ignore[union-attr]
        self._addresses = [address for m in self._exposed for address in m.states]
        self._versions = []  # whoever got them may have written since
        self._changes = (changes, changes.count)
