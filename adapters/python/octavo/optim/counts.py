"""Step counts: which parameters one native call can step, and the tensors that count for them.

Parameters that step together share one count; tracked.py says what others see of it.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._shards import local
from .plan import turns_of
from .tracked import Entry, States

if TYPE_CHECKING:
    from ..checkpoint.native import Loaded


def cohorts(
    params: Sequence[Tensor], entries: Sequence[Entry], on_device: bool, capturing: bool
) -> list[list[int]]:
    """Places of the parameters that one call can step: on one device, with one step count, and without
    common memory.
    """
    found = {id(entry.count()): entry.count() for entry in entries}
    # A single count on the device need not be read, and during a capture it cannot be read.
    unread = on_device and (len(found) == 1 or capturing)
    values = {name: name if unread else int(count) for name, count in found.items()}
    out: dict[tuple[int, torch.device, int], list[int]] = {}
    turns = turns_of([local(p) for p in params])
    for place, (param, entry) in enumerate(zip(params, entries, strict=True)):
        key = (turns[place], local(param).device, values[id(entry.count())])
        out.setdefault(key, []).append(place)
    return [out[key] for key in sorted(out, key=operator.itemgetter(0))]


def own_count(states: States, members: Sequence[Tensor]) -> Tensor:
    """One tensor that counts the steps of these parameters and of no others."""
    ours, first = {id(p) for p in members}, states[members[0]]
    counted: Tensor = first.count()
    others = [e for p, e in states.items() if id(p) not in ours and isinstance(e, Entry)]
    if first.owns(counted) or any(e.count() is counted for e in others):
        counted = counted.clone()
    for param in members:
        states[param].count_with(counted)
    return counted


def kept(states: States, loaded: Sequence[Loaded]) -> dict[tuple[torch.device, int], Tensor]:
    """Step counts that stay the same tensors, as a graph may hold them: where all parameters load one."""
    wanted: dict[int, set[int]] = {}
    tensors: dict[int, Tensor] = {}
    for item in loaded:
        tracked = states.get(item.param)
        if tracked is None:
            continue
        counted = tracked.plain().get("step") if tracked.mirror is None else tracked.mirror.of
        if isinstance(counted, Tensor):
            tensors[id(counted)] = counted
            wanted.setdefault(id(counted), set()).add(item.saved.step)
    out: dict[tuple[torch.device, int], Tensor] = {}
    for number, steps in wanted.items():
        if len(steps) == 1 and (key := (tensors[number].device, next(iter(steps)))) not in out:
            out[key] = tensors[number].fill_(key[1])
    return out
