"""The part of a parameter in this process: all of a plain tensor, or the rows of a DTensor's local shard.

Only shards of dimension 0 and replicas are supported; other placements are an error.

This module does not import torch.distributed.tensor, which takes a third of the time of `import torch`. There
are no DTensors before the program has imported it.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Tensor) -> Tensor:
    """Returns the part in this process without copy and autograd. Waits for a collective's result."""
    if is_sharded(tensor):
        tensor = tensor._local_tensor  # type: ignore[attr-defined]
    module = sys.modules.get("torch.distributed._functional_collectives")
    if module is not None and isinstance(tensor, module.AsyncCollectiveTensor):
        return tensor.trigger_wait()  # type: ignore[no-any-return]
    return tensor


def place_grads(params: Iterable[Tensor]) -> None:
    """Gives gradients with other placements than their parameters' (partial sums of sequence parallelism) the
    parameters' placements, as torch's arithmetic does. Ranks communicate here, so a step does it once.
    """
    for param in params:
        grad = param.grad
        if grad is None or not (is_sharded(param) and is_sharded(grad)):
            continue
        mesh, placements = param.device_mesh, param.placements  # type: ignore[attr-defined]
        if grad.placements != placements and grad.device_mesh == mesh:  # type: ignore[attr-defined]
            param.grad = grad.redistribute(mesh, placements)  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """A range of rows (slices of dimension 0) of a parameter."""

    shape: tuple[int, ...]  # of the full parameter
    first: int
    count: int

    @property
    def row(self) -> int:
        """The number of elements of a row."""
        return math.prod(self.shape[1:])

    @property
    def offset(self) -> int:
        return self.first * self.row

    @property
    def local_shape(self) -> tuple[int, ...]:
        return (self.count, *self.shape[1:]) if self.shape else ()


def rows_of(tensor: Tensor) -> Rows:
    """Returns the local rows. ValueError for a tensor that is split in another way."""
    shape = tuple(tensor.shape)
    first, count = 0, shape[0] if shape else 1
    if not is_sharded(tensor):
        return Rows(shape, first, count)
    from torch.distributed.tensor import Replicate, Shard

    for size, coordinate, placement in zip(
        tensor.device_mesh.shape,  # type: ignore[attr-defined]
        tensor.device_mesh.get_coordinate() or (),  # type: ignore[attr-defined]
        tensor.placements,  # type: ignore[attr-defined]
        strict=True,
    ):
        if type(placement) is Replicate:
            continue
        if type(placement) is not Shard or placement.dim != 0:
            raise ValueError(
                f"the parameter is split as {tensor.placements}, expected Shard(dim=0) or Replicate(): "  # type: ignore[attr-defined]
                "optimizer states follow rows; shard it on dimension 0"
            )
        # torch.chunk gives each rank ceil(n / size) rows; the last ranks have fewer or none.
        chunk = -(-count // size)
        begin = min(coordinate * chunk, count)
        first, count = first + begin, min(chunk, count - begin)
    here = tuple(local(tensor).shape)
    if shape and here != (count, *shape[1:]):
        raise ValueError(f"the local shard has shape {here}, expected {(count, *shape[1:])}")
    return Rows(shape, first, count)


def like(local_tensor: Tensor, parameter: Any, shape: tuple[int, ...]) -> Tensor:
    """Returns a DTensor of `shape` whose rows are split as the parameter's."""
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(  # type: ignore[no-any-return]
        local_tensor,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=torch.empty(shape, dtype=torch.uint8, device="meta").stride(),
    )


def reduction_groups(tensor: Tensor) -> tuple[Any, ...]:
    """Returns the process groups over which a sum of this tensor's elements must be reduced."""
    if not is_sharded(tensor):
        return ()
    from torch.distributed.tensor import Shard

    mesh, placements = tensor.device_mesh, tensor.placements  # type: ignore[attr-defined]
    return tuple(
        mesh.get_group(dim) for dim, placement in enumerate(placements) if isinstance(placement, Shard)
    )
