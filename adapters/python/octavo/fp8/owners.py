"""The weights whose scales an optimizer's step updates: its parameters. The step of a discriminator does not
change the history of a generator, whose backward pass may be pending.

Some weights are not parameters of any optimizer that has stepped so far: frozen weights, and those of FSDP2
and other libraries whose optimizer has other tensors than the model's matmuls. Any step updates the scales of
such a weight, unless its backward pass is pending.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import arenas, sites
from .sites import Site
from .steps import clock, count_step, in_backward


@dataclasses.dataclass(slots=True)
class _Owned:
    params: list[int]  # ids
    generation: int
    sites: list[Site]


_owned: weakref.WeakKeyDictionary[Any, _Owned] = weakref.WeakKeyDictionary()
_pending: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers that have stepped in a backward pass


def _sites_of(optimizer: Any) -> list[Site]:
    """Returns the sites of the optimizer's parameters, and sets it as their owner."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    ids, before = list(map(id, params)), _owned.get(optimizer)
    if before is not None and (before.params, before.generation) == (ids, sites.generation()):
        return before.sites
    generation, found = sites.generation(), sites.of_parameters(params)
    for site in [] if before is None else before.sites:
        if site.owner is not None and site.owner() is optimizer:
            site.owner = None
    for site in found:
        site.owner = weakref.ref(optimizer)
    _owned[optimizer] = _Owned(ids, generation, found)
    return found


@torch.no_grad()
def _end_step_of(optimizers: Iterable[Any]) -> None:
    ended = {site for optimizer in optimizers for site in _sites_of(optimizer)}
    free = [site for site in sites.all_sites() if site.owner is None or site.owner() is None]
    ended.update(site for site in free if not site.waits or site.reduces())
    count_step()
    # Ranks combine the maxima by position, so the order must be equal on all ranks. `_pending` has no order.
    in_order = sorted(ended, key=lambda site: site.number)
    arenas.end_of([site.lease for site in in_order if site.lease is not None])


def end_pending() -> None:
    """Ends the step of the optimizers that stepped during the last backward pass."""
    stepped = list(_pending)
    _pending.clear()
    clock.pending = False
    _end_step_of(stepped)


def _after_optimizer(optimizer: Any, args: Any, kwargs: Any) -> None:
    if in_backward():  # an optimizer per parameter: other weights still need their scales
        count_step()
        clock.pending = True
        _pending.add(optimizer)
    else:
        _end_step_of([optimizer])


register_optimizer_step_post_hook(_after_optimizer)
