"""Checks that offload's data fit into host memory, before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..._describe import formats
from ..._engine import HOST
from ..._shards import local
from . import host_memory

if TYPE_CHECKING:
    from ..optimizer import Optimizer
    from ..roster import Member
    from .host_states import HostStates


def check_fits(
    optimizer: Optimizer, offload: HostStates, members: Sequence[Member], residences: Mapping[int, int]
) -> None:
    """Raises MemoryError if the states of these members, and copies of gradients and weights, do not fit.
    Residences are by handle.
    """
    copies, free = copies_bytes(offload, members, residences), host_memory.free_bytes()
    needed = copies + _state_bytes(offload, members)
    if needed <= free:
        return
    fix = _fix(optimizer, offload, members, free - copies)
    raise MemoryError(
        f"{type(optimizer).__name__}: offload={offload.options.offload!r} needs {_gb(needed)} of host memory "
        f"for {len(members)} parameters, and {_gb(free)} are free; {fix}"
    )


def copies_bytes(offload: HostStates, members: Sequence[Member], residences: Mapping[int, int]) -> int:
    """Returns the bytes of copies of these members' parameters and gradients."""
    options, total = offload.options, 0
    for member in members:
        here, on_cpu = local(member.param), residences[member.handle] == HOST
        gradient = 4 if options.accumulate_in_fp32 else here.element_size()
        copied = on_cpu or options.offload_gradients
        total += here.numel() * (here.element_size() * on_cpu + gradient * copied)
    return total


def _state_bytes(offload: HostStates, members: Sequence[Member], **changes: Any) -> int:
    """Returns the bytes of states, with `changes` of the groups' options."""
    return sum(host_memory.bytes_of(offload.state_form(m, **changes).values()) for m in members)


def _fix(optimizer: Optimizer, offload: HostStates, members: Sequence[Member], free: int) -> str:
    """Returns the advice: the largest format that fits in addition to the copies, or an offload_ratio that
    fits.
    """
    excluded = optimizer._described.excluded_formats
    taken = [name for name, described in formats().items() if not excluded >> described.number & 1]
    sizes = {name: _state_bytes(offload, members, state=name, block_size=None) for name in taken}
    if fitting := {name: size for name, size in sizes.items() if size <= free}:
        name = max(fitting, key=fitting.__getitem__)
        return f"state={name!r} takes {_gb(fitting[name])} of that"
    ratio = max(0, int(100 * free / _state_bytes(offload, members))) / 100
    return f"no format fits; offload_ratio={ratio} leaves the rest on the device"


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f} GB"
