"""Norms of several devices and ranks become one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._collectives import all_reduce


def new_norms(device: torch.device, *shape: int) -> Tensor:
    return torch.zeros((*shape, 3), dtype=torch.float64, device=device)


def copy_to_device(parts: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copies parts to a device. The host reads its copies immediately, so it waits for a GPU."""
    return [part.to(device, non_blocking=device.type != "cpu") for part in parts]


def combine(parts: Sequence[Tensor]) -> Tensor:
    """Combines several norms into the norm of all their gradients."""
    out = torch.empty_like(parts[0])
    stacked = torch.stack(list(parts))
    out[0] = stacked[:, 0].square().sum().sqrt()
    out[1] = stacked[:, 1].amax()
    out.view(torch.int64)[2] = stacked.view(torch.int64)[:, 2].sum()
    return out


def reduce_over_ranks(part: Tensor, groups: tuple[Any, ...]) -> Tensor:
    """Returns the norm of a part over all ranks of these process groups."""
    for group in groups:
        part = reduce_over_group(part, group)
    return part


def reduce_over_group(part: Tensor, group: Any) -> Tensor:
    import torch.distributed as dist

    device = device_for_group(part.device, group)
    sums = torch.stack([part[0].square(), part.view(torch.int64)[2].double()]).to(device)
    largest = part[1].clone().to(device)
    all_reduce(sums, group)
    all_reduce(largest, group, dist.ReduceOp.MAX)
    out = torch.empty_like(part)
    out[0], out[1] = sums[0].sqrt(), largest
    out.view(torch.int64)[2] = sums[1].long()
    return out


def device_for_group(device: torch.device, group: Any) -> torch.device:
    """Returns the device if the process group can communicate from it, else the group's own device: shards
    may be offloaded to the CPU while the group communicates between GPUs only.
    """
    types = [each.type for each in group._device_types]
    return device if device.type in types else torch.device(types[0])
