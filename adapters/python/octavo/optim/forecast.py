"""The memory that an optimizer will allocate, computed for octavo.plan from an optimizer whose parameters
have no memory.

Formats, residences and sizes are computed by the code that makes the states of a step; nothing is stepped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._engine import DEVICE, STREAM
from .._shards import local
from . import hooks
from .checks import planned
from .offload import host_memory_budget, offloaded_steps
from .offload.host_memory import bytes_of
from .states import state

if TYPE_CHECKING:
    from .optimizer import Optimizer
    from .roster import Member

MASTER = state.MASTER
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
        self.optimizer = optimizer
        for hooked in (optimizer._release, optimizer._gradient_offload):
            if hooked is not None:
                hooks._remove(hooked._hooked)
        self.releases = optimizer._release is not None
        self.takes = optimizer._gradient_offload is not None
        self.gathers = not (self.releases and optimizer.needs_norm())
        optimizer._roster.update_members(optimizer.param_groups)
        self._residences = self._choose()

    def _choose(self) -> dict[int, int]:
        """Returns residences by handle. HostStates._choose does the same and reserves memory."""
        away, members = self.optimizer._offload, self._trained()
        if away is None or not members:
            return {}
        device = local(members[0].param).device
        return dict(zip((m.handle for m in members), away._chosen(device, members), strict=True))

    def _trained(self) -> list[Member]:
        return [m for m in self.optimizer._roster.members if m.param.requires_grad]

    def _residence(self, member: Member) -> int:
        return self._residences.get(member.handle, DEVICE)

    def is_away(self, param: Tensor) -> bool:
        return self._residence(self.optimizer._roster.member_of(param)) != DEVICE

    def make(self, param: Tensor) -> dict[str, Tensor]:
        """Returns the state that a step will make on the device; empty if it will be in host memory."""
        member, entry = self.optimizer._roster.member_of(param), dict[str, Any]()
        if self._residence(member) == DEVICE:
            group = self.optimizer.param_groups[member.group]
            moments = state.moments_of(self.optimizer.algorithm, group)
            state.fill_missing(entry, local(param), state.kind_of(param, group), moments)
        return entry

    def counts(self, device: torch.device) -> Tensor | None:
        """Returns step counts that will be on the device, or None."""
        trained, groups = self._trained(), self.optimizer.param_groups
        count = sum(self.optimizer._counts_on_device(groups[m.group]) for m in trained)
        return torch.zeros(count, dtype=torch.int64, device=device) if count else None

    def staging_bytes(self) -> int:
        streamed = [m for m in self._trained() if self._residence(m) == STREAM]
        return min(_STAGING, sum(map(self._state_bytes, streamed)))

    def host_bytes(self) -> int:
        """Returns the bytes of states and of copies of weights and gradients in host memory."""
        away = self.optimizer._offload
        if away is None:
            return 0
        members = [m for m in self._trained() if self._residence(m) != DEVICE]
        states = sum(map(self._state_bytes, members))
        return states + host_memory_budget.copies_bytes(away, members, self._residences)

    def moved_bytes(self, params: Sequence[Tensor]) -> tuple[float, float]:
        """Returns the bytes that a step of these moves on the device, and over the link to host memory."""
        known = [self.optimizer._roster.member_of(param) for param in params]
        here, link = 0.0, 0.0
        for member in known:
            weight = member.param.numel() * member.param.element_size()
            states = self._state_bytes(member)
            residence = self._residence(member)
            if residence in (DEVICE, STREAM):
                here += 3 * weight + 2 * states
            link += {DEVICE: 0, STREAM: 2 * states}.get(residence, 2 * weight)
        return here, link

    def _state_bytes(self, member: Member) -> int:
        group: Mapping[str, Any] = self.optimizer.param_groups[member.group]
        form: dict[str, Any] = {}
        here = torch.empty_like(local(member.param), device="meta")
        moments = state.moments_of(self.optimizer.algorithm, group)
        state.fill_missing(form, here, state.kind_of(member.param, group), moments)
        return bytes_of(form.values())


class Gathered:
    """Gradients that hooks use in the backward pass: gathered, then used together, and alive while queues
    read them (hooks.py, offload/offloaded_steps.py).
    """

    def __init__(self, forecast: Forecast) -> None:
        self._forecast = forecast
        self._params: list[Tensor] = []
        self._bytes = 0
        self._kept: list[list[Tensor]] = []  # gradients

    def add(self, param: Tensor) -> list[Tensor]:
        """Returns the parameters whose gradients are used now that this one is complete."""
        assert param.grad is not None
        self._params.append(param)
        self._bytes += param.grad.nbytes
        if not self._forecast.gathers or self._bytes >= hooks.TOGETHER:
            return self.rest()
        return []

    def rest(self) -> list[Tensor]:
        params, self._params, self._bytes = self._params, [], 0
        return params

    def let_go(self, params: Sequence[Tensor]) -> None:
        """Drops gradients that were used, once no queue reads them."""
        away = [p.grad for p in params if p.grad is not None and self._forecast.is_away(p)]
        for param in params:
            param.grad = None
        if away:
            self._kept.append(away)
        while sum(grad.nbytes for grads in self._kept for grad in grads) > offloaded_steps.KEPT:
            self._kept.pop(0)

    def end(self) -> None:
        self._kept.clear()
