"""The memory that an optimizer will allocate, computed for octavo.plan from an optimizer whose parameters
have no memory.

Formats, residences and sizes are computed by the code that makes the states of a step; nothing is stepped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._engine import DEVICE, STREAM
from .._shards import local
from . import hooks
from .checks import planned
from .offload import host_memory_budget
from .offload.host_memory import bytes_of
from .states import state

if TYPE_CHECKING:
    from .optimizer import Optimizer
    from .roster import Member

# The largest staging memory, which streamed states pass through (src/offload/offloaded_step.h).
_STAGING = 64 << 20


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """Inside, optimizers may be made of parameters without memory."""
    before = planned.set(True)
    try:
        yield
    finally:
        planned.reset(before)


class Forecast:
    """The forecast for one optimizer. It removes the optimizer's hooks."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self._away = optimizer, optimizer._offload
        for hooked in (optimizer._release, optimizer._gradient_offload):
            if hooked is not None:
                hooks._remove(hooked._hooked)
        self.releases = optimizer._release is not None
        self.offloads_grads = optimizer._gradient_offload is not None
        self.gathers = not (self.releases and optimizer.needs_norm())
        optimizer._roster.update_members(optimizer.param_groups)
        self._trained = [m for m in optimizer._roster.members if m.param.requires_grad]
        self._residences: dict[int, int] = {}  # by handle
        if self._away is not None and self._trained:
            # HostStates._choose does the same, and reserves memory.
            chosen = self._away._chosen(local(self._trained[0].param).device, self._trained)
            self._residences = dict(zip((m.handle for m in self._trained), chosen, strict=True))

    def _residence(self, member: Member) -> int:
        return self._residences.get(member.handle, DEVICE)

    def is_offloaded(self, param: Tensor) -> bool:
        return self._residence(self.optimizer._roster.member_of(param)) != DEVICE

    def make_state(self, param: Tensor) -> dict[str, Tensor]:
        """Returns the state that a step will make on the device; empty if it will be in host memory."""
        member, entry = self.optimizer._roster.member_of(param), dict[str, Any]()
        if self._residence(member) == DEVICE:
            kind = state.kind_of(param, self.optimizer.param_groups[member.group])
            state.fill_missing(entry, local(param), kind, self.optimizer.moments_of(member))
        return entry

    def make_counts(self, device: torch.device) -> Tensor | None:
        """Returns step counts that will be on the device, or None."""
        groups = self.optimizer.param_groups
        count = sum(self.optimizer._counts_on_device(groups[m.group]) for m in self._trained)
        return torch.zeros(count, dtype=torch.int64, device=device) if count else None

    def staging_bytes(self) -> int:
        return min(_STAGING, self._state_bytes(m for m in self._trained if self._residence(m) == STREAM))

    def host_bytes(self) -> int:
        """Returns the bytes of states and of copies of weights and gradients in host memory."""
        members = [m for m in self._trained if self._residence(m) != DEVICE]
        if self._away is None:
            return 0
        copies = host_memory_budget.copies_bytes(self._away, members, self._residences)
        return self._state_bytes(members) + copies

    def moved_bytes(self, params: Sequence[Tensor]) -> tuple[float, float]:
        """Returns the bytes that a step of these moves on the device, and over the link to host memory."""
        here, link = 0.0, 0.0
        for member in map(self.optimizer._roster.member_of, params):
            weight, states = member.param.numel() * member.param.element_size(), self._state_bytes([member])
            residence = self._residence(member)
            if residence in (DEVICE, STREAM):
                here += 3 * weight + 2 * states
            link += {DEVICE: 0, STREAM: 2 * states}.get(residence, 2 * weight)
        return here, link

    def _state_bytes(self, members: Iterable[Member]) -> int:
        algorithm, groups = self.optimizer.algorithm, self.optimizer.param_groups
        forms = (state.form_of(algorithm, m.param, groups[m.group]) for m in members)
        return sum(bytes_of(form.values()) for form in forms)
