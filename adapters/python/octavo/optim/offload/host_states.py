"""Decides which states are in host memory, and allocates them there in the order of their parameters."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ... import _abi
from ..._engine import DEVICE
from ..._shards import local
from ..checks import is_ignored
from ..offload_options import RESIDENCES, Options
from ..states import state
from . import host_memory_budget
from .host_memory import Slab, bytes_of

if TYPE_CHECKING:
    from ..optimizer import Optimizer
    from ..roster import Member


class HostStates:
    def __init__(self, optimizer: Optimizer, options: Options) -> None:
        self._optimizer = weakref.ref(optimizer)
        self.options = options
        self._residences: dict[int, int] = {}  # by handle
        self._reserved: dict[int, tuple[Slab, int, int]] = {}  # slab, offset and bytes of states, by handle
        self._frozen: set[int] = set()  # handles of frozen parameters: offloaded, but without reserved memory
        # Begin and end, and a reference that dies with the slab.
        self._slabs: list[tuple[int, int, weakref.ref[object]]] = []

    def residence(self, member: Member) -> int:
        if member.handle not in self._residences and not self._is_ignored(member):
            self._choose()
        # A frozen parameter that cannot be stepped has no residence.
        return self._residences.get(member.handle, DEVICE)

    def is_offloaded(self, member: Member) -> bool:
        return self.residence(member) != DEVICE

    def _choose(self) -> None:
        """Decides for all new parameters. The others keep their residence."""
        optimizer = self._live_optimizer()
        by_device: dict[torch.device, list[Member]] = {}
        members = [m for m in optimizer._roster.members if m.handle not in self._residences]
        new = [m for m in members if not self._is_ignored(m)]
        trained = [m for m in new if m.param.requires_grad]
        for m in trained or new:
            by_device.setdefault(local(m.param).device, []).append(m)
        found = dict[int, int]()
        for device, members in by_device.items():
            found.update(zip((m.handle for m in members), self._chosen(device, members), strict=True))
        away = [m for m in new if found.get(m.handle, DEVICE) != DEVICE]
        self._reserve([m for m in away if m.param.requires_grad], found)
        self._residences.update(found)
        self._frozen.update(m.handle for m in away if not m.param.requires_grad)
        if trained and len(trained) < len(new):
            self._choose()

    def _is_ignored(self, member: Member) -> bool:
        return is_ignored(member.param, self._live_optimizer().param_groups[member.group])

    def _chosen(self, device: torch.device, members: Sequence[Member]) -> list[int]:
        options = self.options
        wanted = RESIDENCES[options.offload]
        if options.offload == "auto" and device.type == "cpu":
            wanted = DEVICE
        given = (_abi.ResidenceTensor * len(members))()
        for slot, m in zip(given, members, strict=True):
            slot.numel = local(m.param).numel()
            slot.state_bytes = self._state_bytes(m)
        out = (_abi.u32 * len(members))()
        budget = -1
        if options.gpu_state_budget is not None:
            budget = max(0, options.gpu_state_budget - self._spent(device))
        _abi.check(
            _abi.library().octavo_choose_residences(
                given, len(members), wanted, options.min_offload_size, options.offload_ratio, budget, out
            )
        )
        return list(out)

    def _spent(self, device: torch.device) -> int:
        """Returns the bytes of the budget that earlier parameters use."""
        here = [m for m in self._live_optimizer()._roster.members if self._residences.get(m.handle) == DEVICE]
        return sum(
            self._state_bytes(m)
            for m in here
            if local(m.param).device == device and local(m.param).numel() >= self.options.min_offload_size
        )

    def _state_bytes(self, member: Member) -> int:
        return sum(t.numel() * t.element_size() for t in self.state_form(member).values())

    def state_form(self, member: Member, kind: state.Kind | None = None, **changes: Any) -> dict[str, Tensor]:
        """Returns its state as tensors without memory, with `changes` of its group's options."""
        optimizer = self._live_optimizer()
        group = {**optimizer.param_groups[member.group], **changes}
        return state.form_of(optimizer.algorithm, member.param, group, kind)

    def _reserve(self, away: Sequence[Member], residences: Mapping[int, int]) -> None:
        """Reserves memory for all of them in one slab, in their order."""
        if not away:
            return
        host_memory_budget.check_fits(self._live_optimizer(), self, away, residences)
        sizes = [bytes_of(self.state_form(m).values()) for m in away]
        slab, offset = self._slab(sum(sizes), away), 0
        for m, size in zip(away, sizes, strict=True):
            self._reserved[m.handle] = (slab, offset, size)
            offset += size

    def reserve_memory(self, members: Iterable[Member]) -> None:
        """Reserves memory for these members if they were frozen, and for all that are not frozen any more."""
        wanted = {m.handle for m in members} & self._frozen
        if not wanted:
            return
        frozen = [m for m in self._live_optimizer()._roster.members if m.handle in self._frozen]
        own = [m for m in frozen if m.handle in wanted or m.param.requires_grad]
        self._reserve(own, self._residences)
        self._frozen.difference_update(m.handle for m in own)

    def _slab(self, size: int, members: Iterable[Member]) -> Slab:
        slab = Slab(max(size, 1), any(local(m.param).device.type != "cpu" for m in members))
        self._slabs = [known for known in self._slabs if known[2]() is not None]
        self._slabs.append((slab.begin, slab.end, slab.alive()))
        return slab

    def allocate_state(self, member: Member, entry: dict[str, Any], kind: state.Kind) -> None:
        """Puts the state's tensors into host memory: missing tensors as zeros, tensors from elsewhere as
        copies.
        """
        form = self.state_form(member, kind)
        if all(self._is_in_slab(entry.get(key)) for key in form):
            return
        size = bytes_of(form.values())
        self.reserve_memory([member])
        slab, offset, reserved = self._reserved.pop(member.handle, (None, 0, 0))
        if slab is None or size != reserved:
            slab, offset = self._slab(size, [member]), 0
        for key, made in slab.tensors(offset, form).items():
            present = entry.get(key)
            if present is not None and (present.dtype, present.shape) != (made.dtype, made.shape):
                continue  # user code's own tensor; the engine reports what is wrong with it
            if present is not None:  # float8 is copied as bytes, because some devices cannot copy it
                made, present = made.detach(), present.detach()
                one = made.element_size() == 1
                (made.view(torch.uint8) if one else made).copy_(present.view(torch.uint8) if one else present)
            entry[key] = made

    def _is_in_slab(self, value: Any) -> bool:
        if not isinstance(value, Tensor) or value.device.type != "cpu":
            return False
        at = value.data_ptr()
        return not value.numel() or any(
            begin <= at < end for begin, end, alive in self._slabs if alive() is not None
        )

    def host_bytes(self) -> int:
        states = sum(end - begin for begin, end, alive in self._slabs if alive() is not None)
        return states + self.engine.host_bytes()

    def _live_optimizer(self) -> Optimizer:
        optimizer = self._optimizer()
        assert optimizer is not None
        return optimizer
