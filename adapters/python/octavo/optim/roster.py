"""The parameters of an optimizer as they are registered with the engine.

Everything about a parameter is examined once, when it is registered (registration.py). optimizer.py compares
at every step; the roster notes which registrations are out of date.
"""

from __future__ import annotations

import dataclasses
import operator
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._collectives import release_at_exit
from .._shards import is_sharded, local, reduction_groups
from .states.tracked_state import ChangeCount, Entry, States

if TYPE_CHECKING:
    from .optimizer import StepTensors

_CPU = torch.device("cpu")
_address = torch.Tensor.data_ptr
_version = operator.attrgetter("_version")


@dataclasses.dataclass(slots=True, eq=False)
class Member:
    """One parameter, and how it is registered with the engine."""

    param: Tensor
    handle: int
    group: int
    index: int  # in the group
    place: int  # among all
    groups: tuple[Any, ...]  # process groups that share its gradient
    address: int | None = None  # None: not registered, or not as it is now
    bytes: int = 0
    numel: int = 0
    size: torch.Size = dataclasses.field(default_factory=torch.Size)
    stride: tuple[int, ...] = ()
    contiguous: bool = True
    device: torch.device = _CPU
    states: list[int] = dataclasses.field(default_factory=list)  # addresses
    entry: weakref.ref[Entry] | None = None
    count: weakref.ref[Tensor] | None = None  # a step count on a device, which the engine does not read
    count_version: int = 0

    def record_registration(self, entry: Entry) -> None:
        """Notes the parameter and its state as they were registered just now."""
        here = local(self.param)
        self.address, self.bytes, self.numel = here.data_ptr(), here.nbytes, here.numel()
        self.size, self.stride, self.contiguous = here.size(), here.stride(), here.is_contiguous()
        self.device = here.device
        self.states = [tensor.data_ptr() for tensor in entry.tensors()]
        self.entry = weakref.ref(entry)
        count = entry.step_count()
        self.count = None if count.device.type == "cpu" else weakref.ref(count)
        self.count_version = 0 if self.count is None else count._version
        entry.registered, entry.steps = True, None

    def state(self) -> Entry | None:
        """Returns the registered state, if it still exists."""
        return None if self.entry is None else self.entry()

    def state_tensors(self) -> list[Tensor]:
        entry = self.state()
        return [] if entry is None else entry.tensors()

    def has_registered(self, entry: Any) -> bool:
        """Returns whether this state is registered as it is now."""
        return entry is not None and self.state() is entry and entry.registered

    def count_was_written(self) -> bool:
        """Returns whether other code has written to the step count on the device."""
        count = None if self.count is None else self.count()
        return count is not None and count._version != self.count_version

    def known_steps(self, entry: Entry, count: Tensor) -> int:
        """Returns octavo_engine_tensor.known_steps: -2 if the engine has the value of this count, else -1."""
        same = self.state() is entry and self.count is not None and self.count() is count
        return -2 if same and not self.count_was_written() else -1

    def has_moved(self) -> bool:
        here = local(self.param)
        # An empty tensor has the same address on every device.
        now = (here.data_ptr(), here.nbytes, here.stride(), here.device)
        return now != (self.address, self.bytes, self.stride, self.device)


class Roster:
    """All parameters of an optimizer, in the order of its groups."""

    def __init__(self) -> None:
        self.members: list[Member] = []
        self.params: list[Tensor] = []
        self.sharded: list[Member] = []
        self.lists: list[list[Tensor]] = []  # copies of the groups' lists
        self.handles = 0  # how many were given out
        self.removed: list[int] = []  # handles of parameters that left the groups; the engine still has them
        self.outdated: dict[int, Member] = {}  # by handle: what the engine knows of them is not so any more
        self.step_tensors: dict[int, StepTensors] = {}  # by the first handle that was asked for; -1: all
        self._by_id: dict[int, Member] = {}
        # States of which code outside the optimizer has a tensor: only they can be written or moved.
        self.exposed: list[Member] = []
        self.watched: ChangeCount | None = None  # the change count that the next was read from
        self.watched_at = 0
        self._addresses: list[int] = []
        self._versions: list[int] = []

    def update_members(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Adds parameters that are new in the groups, and removes those that left them."""
        lists = [group["params"] for group in groups]
        before, by_id, members = dict(self._by_id), dict[int, Member](), list[Member]()
        for number, params in enumerate(lists):
            for index, param in enumerate(params):
                place = len(members)
                member = before.pop(id(param), None)
                if member is None:
                    member = Member(param, self.handles, number, index, place, reduction_groups(param))
                    self.handles += 1
                elif (member.group, member.place) != (number, place):
                    self.mark_outdated([member])
                member.group, member.index, member.place = number, index, place
                members.append(member)
                by_id[id(param)] = member
        self.removed += [member.handle for member in before.values()]
        self.step_tensors, self.watched = {}, None
        self.members, self._by_id = members, by_id
        self.params = [member.param for member in members]
        self.sharded = [member for member in members if is_sharded(member.param)]
        if self.sharded:
            release_at_exit()
        self.lists = [list(params) for params in lists]  # last, in case an exception interrupts these lines

    def find_member(self, param: Tensor) -> Member | None:
        return self._by_id.get(id(param))

    def member_of(self, param: Tensor) -> Member:
        return self._by_id[id(param)]

    def registered(self) -> list[Member]:
        return [member for member in self.members if member.address is not None]

    def mark_outdated(self, members: Sequence[Member]) -> None:
        """Notes that the engine's records of these are wrong."""
        for member in members:
            member.address = None
            self.outdated[member.handle] = member
        if members:
            self.step_tensors, self.watched = {}, None

    def pop_removed_handles(self, kept: Sequence[Member]) -> list[int]:
        """Returns the handles that the engine must remove: all that are removed or out of date, except
        `kept`, which are registered again.
        """
        for member in kept:
            self.outdated.pop(member.handle, None)
        for member in self.outdated.values():
            member.entry = None
        handles, self.removed, self.outdated = dict.fromkeys([*self.removed, *self.outdated]), [], {}
        return list(handles)

    def watch_registered(self, members: Sequence[Member], changes: ChangeCount) -> None:
        """Watches the states of members that were registered just now. No other code has changed a state
        meanwhile.
        """
        self.step_tensors = {key: found for key, found in self.step_tensors.items() if found.registered}
        if self.watched is changes:
            self._watch_states(changes, [*self.exposed, *members])

    def check_states(self, states: States) -> None:
        """Marks members as out of date whose state was replaced, moved, or written in a way that changes
        more than values.
        """
        changes = states.changes
        if self.watched is not changes or self.watched_at != changes.count:
            self.mark_outdated([m for m in self.registered() if not m.has_registered(states.get(m.param))])
            self._watch_states(changes, self.registered())
        if not self.exposed:
            return
        if list(map(_address, changes.watched_tensors)) != self._addresses:
            moved = [m for m in self.exposed if list(map(_address, m.state_tensors())) != m.states]
            self.mark_outdated(moved)
        counted = [tensor for tensor in changes.watched_tensors if not tensor.is_inference()]
        if (versions := list(map(_version, counted))) != self._versions:
            for member in self.exposed:
                entry: Any = member.state()
                if entry.rewritten_codes() or member.count_was_written():
                    self.mark_outdated([member])
                else:
                    entry.record_versions()
            self._versions = versions

    def _watch_states(self, changes: ChangeCount, members: Sequence[Member]) -> None:
        """Makes the next steps compare the exposed states of these members."""
        self.exposed = [m for m in members if (entry := m.state()) is not None and entry.exposed]
        changes.watched_tensors = [tensor for m in self.exposed for tensor in m.state_tensors()]
        self._addresses = [address for m in self.exposed for address in m.states]
        self._versions = []  # the tensors may have been written after they were exposed
        self.watched, self.watched_at = changes, changes.count
