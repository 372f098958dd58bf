"""The norm of all gradients of an optimizer, on their device: what fused clipping and the non-finite guard
read.

It reads the gradients once, and the host does not wait. Where gradients are sharded or on several devices,
the parts are combined (and summed over the ranks) in double.
"""

from __future__ import annotations

import array
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._engine import NativeNorm
from .plan import NormKey, Ready


class Norms:
    """Norm buffers as the core reads them: l2, maximum, and the count of non-finite elements as int64."""

    def __init__(self) -> None:
        self._natives: dict[NormKey, NativeNorm] = {}

    def total(
        self, steps: Sequence[Ready], shared: Mapping[NormKey, tuple[Any, ...]] | None = None
    ) -> dict[torch.device, Tensor]:
        """The norm over all their gradients, once per device. `shared` are the parts that other ranks sum up,
        too: in their order on every rank, also where this one has no gradient.
        """
        groups: dict[NormKey, tuple[Any, ...]] = dict(shared or {})
        parts = {key: array.array("Q") for key in groups}
        for ready in steps:
            for part in ready.plan.norm_parts:
                views = array.array("Q", part.views)
                views[0::3] = ready.addresses_of(part.members)
                parts.setdefault(part.key, array.array("Q")).extend(views)
                groups[part.key] = part.groups
        found = [self._run(key, views, groups[key]) for key, views in parts.items()]
        if len(found) == 1:
            return {found[0].device: found[0]}
        devices = {device for device, _ in parts}
        return {device: combine([part.to(device, non_blocking=True) for part in found]) for device in devices}

    def _run(self, key: NormKey, views: array.array[int], groups: tuple[Any, ...]) -> Tensor:
        if views:
            native = self._natives.get(key)
            if native is None:
                native = self._natives[key] = NativeNorm(key[0])
            buffer = native.run(views)
        else:
            buffer = torch.zeros(3, dtype=torch.float64, device=key[0])
        for group in groups:
            buffer = over_ranks(buffer, group)
        return buffer


def combine(parts: Sequence[Tensor]) -> Tensor:
    """Combines several norms into the norm of all their gradients."""
    out = torch.empty_like(parts[0])
    stacked = torch.stack(list(parts))
    out[0] = stacked[:, 0].square().sum().sqrt()
    out[1] = stacked[:, 1].amax()
    out.view(torch.int64)[2] = stacked.view(torch.int64)[:, 2].sum()
    return out


def over_ranks(part: Tensor, group: Any) -> Tensor:
    """The norm of all ranks' parts."""
    import torch.distributed as dist

    # Shards that are offloaded to the CPU, while the group moves a GPU's memory alone.
    reached = [device.type for device in group._device_types]
    device = part.device if part.device.type in reached else torch.device(reached[0])
    sums = torch.stack([part[0].square(), part.view(torch.int64)[2].double()]).to(device)
    largest = part[1].clone().to(device)
    dist.all_reduce(sums, group=group)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)
    out = torch.empty_like(part)
    out[0], out[1] = sums[0].sqrt(), largest
    out.view(torch.int64)[2] = sums[1].long()
    return out
