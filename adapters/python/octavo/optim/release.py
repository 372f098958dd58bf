"""Gradient release: each parameter is stepped as soon as its gradient is complete, and the gradient is freed.

A whole model's gradients are then never in memory at once. It needs one backward pass per step (no
accumulation, no GradScaler). Clipping cannot know this step's norm before its last gradient, so it uses the
previous step's; the first step is not clipped. FSDP2 calls the hooks when its shards of gradients are
reduced; DistributedDataParallel only afterwards averages what they have freed, so it is refused.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from .norms import Norms

if TYPE_CHECKING:
    from .base import Optimizer
    from .plan import Ready


class GradientRelease:
    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._previous: dict[torch.device, Tensor] = {}  # norm of the last whole step
        # Of this step: parameter and norm, by the parameter's id.
        self._parts: dict[int, tuple[Tensor, Tensor]] = {}
        self._norms: dict[int, Norms] = {}  # one per parameter: each has its buffer
        self._averaged_later: bool | None = None  # not looked yet
        self._hooks: list[Any] = []
        weakref.finalize(optimizer, _remove, self._hooks)
        for group in optimizer.param_groups:
            self.watch(group)

    def watch(self, group: dict[str, Any]) -> None:
        """Steps the group's parameters from now on when their gradients are complete."""
        owner = self._optimizer

        def stepped(param: Tensor) -> None:
            optimizer = owner()
            if optimizer is not None and any(g is group for g in optimizer.param_groups):
                self._step(optimizer, group, param)

        self._hooks.extend(
            param.register_post_accumulate_grad_hook(stepped)
            for param in group["params"]
            if param.requires_grad
        )

    @torch.no_grad()
    def _step(self, optimizer: Optimizer, group: dict[str, Any], param: Tensor) -> None:
        if self._averaged_later is None:  # the module may have been wrapped after the optimizer was made
            self._averaged_later = _in_ddp(p for g in optimizer.param_groups for p in g["params"])
        if self._averaged_later:
            raise RuntimeError(
                f"{type(optimizer).__name__}: gradient_release steps each parameter before "
                "DistributedDataParallel averages its gradient; use FSDP2, or no gradient_release"
            )
        if optimizer._clip is None and not optimizer._guard:
            optimizer.step_groups([(group, [param], id(param))])
        else:
            optimizer.step_groups([(group, [param], id(param))], self._norm_of)
        param.grad = None

    def _norm_of(self, ready: Ready) -> Mapping[torch.device, Tensor]:
        """The previous step's norm, with the count of this gradient's non-finite elements for the guard."""
        param, device = ready.plan.active[0], ready.grads[0].device
        mine = self._norms.setdefault(id(param), Norms()).total([ready])[device]
        self._parts[id(param)] = (param, mine)
        before = self._previous.get(device)
        out = torch.zeros_like(mine) if before is None else before.clone()
        out[2:] = mine[2:]
        return {device: out}

    def end_of_step(self) -> None:
        """Takes this step's norm for the next one; a norm that is not finite is not taken."""
        by_device: dict[torch.device, list[Tensor]] = {}
        for _, part in self._parts.values():
            by_device.setdefault(part.device, []).append(part)
        self._parts = {}
        if not by_device:
            return
        optimizer, devices = self._optimizer(), list(by_device)
        squares = [torch.stack(parts)[:, 0].square().sum() for parts in by_device.values()]
        for device in devices:
            total = torch.stack([square.to(device) for square in squares]).sum().sqrt()
            before = self._previous.get(device)
            if before is None:
                before = torch.zeros(3, dtype=torch.float64, device=device)
            self._previous[device] = before.clone()
            self._previous[device][0] = torch.where(torch.isfinite(total), total, before[0])
            if optimizer is not None:
                optimizer.released(total, torch.stack(by_device[device]).view(torch.int64)[:, 2].sum())


def _remove(hooks: list[Any]) -> None:
    """Parameters outlive their optimizer; its hooks should not."""
    for hook in hooks:
        hook.remove()


def _in_ddp(params: Iterable[Tensor]) -> bool:
    """Whether DistributedDataParallel has any of them. It leaves no mark on parameters that can be read."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    ours = {id(p) for p in params}
    wrappers = [o for o in gc.get_objects() if issubclass(type(o), DistributedDataParallel)]
    return any(id(p) in ours for wrapper in wrappers for p in wrapper.parameters())
