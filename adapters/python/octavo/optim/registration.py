"""Registers parameters with the engine: examines them, makes or moves their states, and gives the engine
every address. All parameters are checked before anything is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import _abi
from .._codec import STEP
from .._engine import device_numbers
from .._shards import local
from ..checkpoint import native as native_form
from ..checkpoint.saved import known_moments
from .checks import check_grad, check_param
from .states import state, state_repair

if TYPE_CHECKING:
    from .base import OptimizerBase
    from .roster import Member

_UNKNOWN = -1  # octavo_engine_tensor.known_steps


def check_and_register(optimizer: OptimizerBase, members: Sequence[Member]) -> None:
    """Checks everything about these parameters and their gradients, then registers those of which the engine
    has no record, or an old one.
    """
    groups = optimizer.param_groups
    for m in members:
        with optimizer._named(groups[m.group], m.index):
            check_param(m.param)
            if m.param.grad is not None:  # else it is in host memory
                check_grad(m.param, m.param.grad)
    _mark_moved(optimizer, [m for m in members if m.address is not None and m.has_moved()])
    unknown, kinds = [m for m in members if m.address is None], []
    for m in unknown:
        with optimizer._named(groups[m.group], m.index):
            kinds.append(state_kind(optimizer, m.param, groups[m.group]))
    if unknown:
        optimizer._buffers.add_devices(local(m.param).device for m in unknown)
        for number in sorted({m.group for m in unknown}):
            optimizer._send_options(number)
        with torch.inference_mode(False):  # writes to inference tensors are not counted
            register_tensors(optimizer, unknown, kinds)


def state_kind(optimizer: OptimizerBase, param: Tensor, group: Mapping[str, Any]) -> state.Kind:
    """Returns how the state is stored: as when it was made, even if the group's options have changed."""
    asked = state.kind_of(param, group)
    tracked = optimizer.state.get(param)
    if not tracked:
        return asked
    entry = tracked.plain()
    if state.MASTER in entry and entry[state.MASTER].shape != asked.rows.local_shape:
        raise RuntimeError(
            f"its master bits have shape {tuple(entry[state.MASTER].shape)}, expected "
            f"{asked.rows.local_shape}"
        )
    if not entry.keys() & known_moments().keys():
        return asked
    known = tracked.kind or asked
    if known.rows != asked.rows:
        raise RuntimeError(
            f"its state was made for shape {known.rows.local_shape}, expected {asked.rows.local_shape}; "
            "parameters must keep their shape (or make a new optimizer)"
        )
    if known.order != asked.order:
        raise RuntimeError(
            f"its state was made for dimensions that lie in memory in the order {known.order}, and they "
            f"now lie in the order {asked.order}; parameters must keep their shape and memory format (or "
            "make a new optimizer, and load the state_dict() from before the change)"
        )
    if known.master != asked.master:
        known = dataclasses.replace(known, master=asked.master)
    kind = native_form.kind_of_entry(entry, known)
    state_repair.zero_scales_of_zeroed_codes(tracked, kind)
    return kind


def _mark_moved(optimizer: OptimizerBase, moved: Sequence[Member]) -> None:
    for m in moved if optimizer._offload is not None else ():
        with optimizer._named(optimizer.param_groups[m.group], m.index):
            optimizer._offload.check_no_host_grad(m)  # type: ignore[union-attr]
    optimizer._roster.mark_outdated(moved)


def register_tensors(
    optimizer: OptimizerBase, members: Sequence[Member], kinds: Sequence[state.Kind]
) -> None:
    """Gives the engine these parameters and their states, which are made if they are missing."""
    offload = optimizer._offload
    if offload is not None:
        offload.synchronize()
    tensors = (_abi.EngineTensor * len(members))()
    entries = _make_states(optimizer, members, kinds)
    counts: set[int] = set()  # addresses of other states' step counts
    if any(optimizer.state[m.param].exposed for m in members):
        registered = (m.state() for m in optimizer._roster.registered())
        counts.update(entry.step_count().data_ptr() for entry in registered if entry is not None)
    unread: list[tuple[Any, Tensor]] = []
    for slot, m, kind, entry in zip(tensors, members, kinds, entries, strict=True):
        tracked = optimizer.state[m.param]
        count, steps = entry[STEP], tracked.steps
        # User code may have put one count into two states, or a count whose writes are not counted.
        if count.data_ptr() in counts or count.is_inference():
            count = entry[STEP] = count.clone()
        counts.add(count.data_ptr())
        state.describe(slot, entry, local(m.param), kind, optimizer.moments_of(m))
        slot.group, slot.id, slot.norm_part = m.group, m.place, optimizer._buffers.part_number(m.groups)
        slot.step_on_device = optimizer._count_is_on_device(m)
        if offload is not None and offload.is_offloaded(m):
            slot.state_device_kind, slot.state_device_index = device_numbers(torch.device("cpu"))
            slot.residence = offload.residence(m)
            slot.held_in_fp32 = offload.options.accumulate_in_fp32
        slot.known_steps = m.known_steps(tracked, count) if steps is None else steps
        if slot.known_steps == _UNKNOWN and count.device.type != "cpu" and not optimizer._capturing:
            unread.append((slot, count))
        tracked.replace(entry)
        tracked.kind = kind
    _read_device_counts(unread)
    call_engine(optimizer, lambda: optimizer._engine.set([m.handle for m in members], tensors), members)
    for m in members:
        m.record_registration(optimizer.state[m.param])
    if offload is not None:
        offload.forget_versions(members)
    optimizer._roster.watch_registered(members, optimizer.state.changes)


def _make_states(
    optimizer: OptimizerBase, members: Sequence[Member], kinds: Sequence[state.Kind]
) -> list[dict[str, Any]]:
    """Returns the states that these parameters must have, as separate dictionaries."""
    entries, lacking, offload = [], [], optimizer._offload
    for m, kind in zip(members, kinds, strict=True):
        here, entry, moments = local(m.param), optimizer.state[m.param].plain(), optimizer.moments_of(m)
        away = offload is not None and offload.is_offloaded(m)
        state_repair.move_state(entry, None if away else here.device, optimizer._count_device(m))
        state_repair.convert_master(entry, here, kind, type(optimizer).__name__)
        begins = optimizer._described.first_step_fills and any(name not in entry for name, _ in moments)
        if STEP not in entry or begins:
            lacking.append((m, entry))
        if away:
            offload.allocate_state(m, entry, kind)  # type: ignore[union-attr]
        state.fill_missing(entry, here, kind, moments)
        state.lay_out(entry, kind, moments)
        entries.append(entry)
    add_step_counts(optimizer, lacking)
    return entries


def add_step_counts(optimizer: OptimizerBase, lacking: Iterable[tuple[Member, dict[str, Any]]]) -> None:
    """Gives states without a step count one: a view of one vector per device."""
    by_device: dict[torch.device, list[tuple[Member, dict[str, Any]]]] = {}
    for m, entry in lacking:
        by_device.setdefault(optimizer._count_device(m), []).append((m, entry))
    for device, some in by_device.items():
        counts = torch.zeros(len(some), dtype=torch.int64, device=device).unbind()
        for (m, entry), count in zip(some, counts, strict=True):
            entry[STEP], optimizer.state[m.param].steps = count, 0


def _read_device_counts(unread: Sequence[tuple[Any, Tensor]]) -> None:
    """Fills in the values of step counts on devices. Waits for the devices."""
    for device in {count.device for _, count in unread}:
        there = [(slot, count) for slot, count in unread if count.device == device]
        values = torch.stack([count for _, count in there]).tolist()
        for (slot, _), value in zip(there, values, strict=True):
            slot.known_steps = value


def call_engine(optimizer: OptimizerBase, call: Callable[[], None], members: Sequence[Member] = ()) -> None:
    """Calls the engine after it has removed old records, except those of `members`, which the call replaces.

    The engine refuses memory that belongs to another record. That record may be the old memory of a parameter
    that was moved and has no gradient now, so the call is repeated without such records.
    """
    engine, roster = optimizer._engine, optimizer._roster
    for _ in range(2):
        if removed := roster.pop_removed_handles(members):
            if optimizer._offload is not None:
                optimizer._offload.synchronize()
                optimizer._offload.forget_handles(removed)
            engine.remove(removed)
        try:
            return call()
        except _abi.OctavoError as error:
            failed, moved = error, [m for m in roster.registered() if m.has_moved()]
            _mark_moved(optimizer, moved)
            if not moved:
                break
    about = (optimizer.label_of(m) for m in roster.members if m.handle == engine.failed_tensor())
    raise _abi.OctavoError(f"{next(about, type(optimizer).__name__)}: {failed}") from None
