"""The norm of all gradients of an optimizer, on their device: what fused clipping and the non-finite guard
read.

One pass over the gradients and no word to the host. Where gradients are sharded or on several devices, the
parts are combined (and summed over the ranks) in double.
"""

from __future__ import annotations

import array
from collections.abc import Sequence

import torch
from torch import Tensor

from .._engine import NativeNorm
from .._shards import local, reduction_groups


class Norms:
    """Norm buffers as the core reads them: l2, maximum, and the count of non-finite elements as int64."""

    def __init__(self) -> None:
        self._natives: dict[tuple[torch.device, tuple[int, ...]], NativeNorm] = {}

    def total(self, params: Sequence[Tensor], grads: Sequence[Tensor]) -> dict[torch.device, Tensor]:
        """The norm over all of them, once per device. `grads` are the local ones of `params`."""
        parts: dict[tuple[torch.device, tuple[int, ...]], list[Tensor]] = {}
        reductions = {}
        for param, grad in zip(params, grads, strict=True):
            groups = reduction_groups(param)
            key = (local(param).device, tuple(id(g) for g in groups))
            reductions[key] = groups
            parts.setdefault(key, []).append(grad)
        found = []
        for key, members in parts.items():
            native = self._natives.get(key) or self._natives.setdefault(key, NativeNorm(key[0]))
            buffer = native.run(members, array.array("Q", [g.data_ptr() for g in members]))
            for group in reductions[key]:
                buffer = _over_ranks(buffer, group)
            found.append(buffer)
        if len(found) == 1:
            return {found[0].device: found[0]}
        devices = {key[0] for key in parts}
        return {device: combine([part.to(device, non_blocking=True) for part in found]) for device in devices}


def combine(parts: Sequence[Tensor]) -> Tensor:
    """The norm of everything that several norms are of."""
    out = torch.empty_like(parts[0])
    stacked = torch.stack(list(parts))
    out[0] = stacked[:, 0].square().sum().sqrt()
    out[1] = stacked[:, 1].amax()
    out.view(torch.int64)[2] = stacked.view(torch.int64)[:, 2].sum()
    return out


def _over_ranks(part: Tensor, group: object) -> Tensor:
    import torch.distributed as dist

    sums = torch.stack([part[0].square(), part.view(torch.int64)[2].double()])
    largest = part[1].clone()
    dist.all_reduce(sums, group=group)  # type: ignore[arg-type]
    dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=group)  # type: ignore[arg-type]
    out = torch.empty_like(part)
    out[0], out[1] = sums[0].sqrt(), largest
    out.view(torch.int64)[2] = sums[1].long()
    return out
