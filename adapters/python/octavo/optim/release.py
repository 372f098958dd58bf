"""Gradient release: each parameter is stepped as soon as its gradient is complete, and the gradient is freed.

A whole model's gradients are then never in memory at once. It needs one backward pass per step (no
accumulation, no GradScaler): a gradient that is complete a second time before step() is an error. Clipping
cannot know this step's norm before its last gradient, so it uses the previous step's; the first step is not
clipped. FSDP2 calls the hooks when its shards of gradients are reduced. DistributedDataParallel averages what
they have freed only afterwards, so it is refused: where there is a process group, the first gradients of
plain tensors wait for step(), which sees whether somebody has written them since.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._shards import is_sharded
from .norms import Norms

if TYPE_CHECKING:
    from .base import Optimizer
    from .plan import Ready

_Seen = tuple[Tensor, int, int]  # a gradient, its address and its version


class GradientRelease:
    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._previous: dict[torch.device, Tensor] = {}  # norm of the last whole step
        # Of this step: parameter and norm, by the parameter's id.
        self._parts: dict[int, tuple[Tensor, Tensor]] = {}
        self._norms: dict[int, Norms] = {}  # one per parameter: each has its buffer
        self._complete: dict[int, Tensor] = {}  # parameters whose gradient this step has had, by id
        self._waiting: dict[int, _Seen] = {}  # gradients that step() is to use, by the parameter's id
        self._hooked: dict[int, tuple[weakref.ref[Tensor], Any]] = {}
        # Autograd has a thread per device, and all of them step this one optimizer.
        self._lock = threading.RLock()
        self._trusted = False  # nobody averages gradients after the hooks
        weakref.finalize(optimizer, _remove, self._hooked)
        for group in optimizer.param_groups:
            self.watch(group)

    def watch(self, group: dict[str, Any]) -> None:
        """Steps the group's parameters from now on when their gradients are complete."""
        owner = self._optimizer

        def stepped(param: Tensor) -> None:
            optimizer = owner()
            if optimizer is not None and any(g is group for g in optimizer.param_groups):
                self._completed(optimizer, group, param)

        for param in group["params"]:
            known = self._hooked.get(id(param))
            if param.requires_grad and (known is None or known[0]() is not param):
                handle = param.register_post_accumulate_grad_hook(stepped)
                self._hooked[id(param)] = (weakref.ref(param), handle)

    def forget(self) -> None:
        """Other states were loaded, so what this step has done so far is forgotten."""
        with self._lock:
            self._complete, self._waiting, self._parts = {}, {}, {}

    def _completed(self, optimizer: Optimizer, group: dict[str, Any], param: Tensor) -> None:
        with self._lock:
            if id(param) in self._complete:
                param.grad = None  # so that step() ends the step that was taken
                raise RuntimeError(
                    f"{_named(optimizer, group, param)}: its gradient is complete a second time since the "
                    "last step(), and gradient_release has used the first one already; it takes one backward "
                    "pass per step(): no gradient accumulation (gradient_accumulation_steps=1, "
                    "accumulate_grad_batches=1), or no gradient_release"
                )
            self._complete[id(param)] = param
            if self._trusted or is_sharded(param) or not (dist.is_available() and dist.is_initialized()):
                self._step(optimizer, group, param)
            else:
                self._waiting[id(param)] = _seen(param.grad)  # type: ignore[arg-type]

    @torch.no_grad()
    def _step(self, optimizer: Optimizer, group: dict[str, Any], param: Tensor) -> None:
        norm_of = self._norm_of if optimizer.needs_norm() else None
        optimizer.step_groups([(group, [param], id(param))], norm_of)
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

    def end_of_step(self, optimizer: Optimizer) -> None:
        """Steps the parameters that still have a gradient, and keeps this step's norm for the next one."""
        with self._lock:
            for number, (grad, _, _) in self._waiting.items():
                if self._complete[number].grad is None:  # zero_grad() came before step()
                    self._complete[number].grad = grad
            left = list(_with_gradients(optimizer))
            for group, param in left:
                self._check_untouched(optimizer, group, param)
            for group, param in left:
                self._step(optimizer, group, param)
            self._trusted = self._trusted or bool(self._waiting)
            self._complete, self._waiting = {}, {}
            for group in optimizer.param_groups:  # parameters may have been unfrozen, or replaced
                self.watch(group)
            self._take_norm(optimizer)

    def _check_untouched(self, optimizer: Optimizer, group: dict[str, Any], param: Tensor) -> None:
        """RuntimeError where the gradient that a hook was called for was written afterwards."""
        if id(param) not in self._complete:
            return  # no hook: it was frozen, or is new, or the gradient was set by hand
        seen = self._waiting.get(id(param))
        if seen is None or param.grad is not seen[0] or _seen(seen[0])[1:] != seen[1:]:
            self.forget()
            raise RuntimeError(
                f"{_named(optimizer, group, param)}: its gradient was written after it was complete. "
                "gradient_release steps each parameter before DistributedDataParallel averages its gradient "
                "or clip_grad_norm_ clips it; use FSDP2, the argument clip_grad_norm, or no gradient_release"
            )

    def _take_norm(self, optimizer: Optimizer) -> None:
        """A norm that is not finite is not kept."""
        by_device: dict[torch.device, list[Tensor]] = {}
        for _, part in self._parts.values():
            by_device.setdefault(part.device, []).append(part)
        self._parts = {}
        optimizer.nothing_stepped()
        squares = [torch.stack(parts)[:, 0].square().sum() for parts in by_device.values()]
        for device, parts in by_device.items():
            total = torch.stack([square.to(device) for square in squares]).sum().sqrt()
            before = self._previous.get(device)
            if before is None:
                before = torch.zeros(3, dtype=torch.float64, device=device)
            self._previous[device] = before.clone()
            self._previous[device][0] = torch.where(torch.isfinite(total), total, before[0])
            optimizer.released(total, torch.stack(parts).view(torch.int64)[:, 2].sum())


def _seen(grad: Tensor) -> _Seen:
    return grad, grad.data_ptr(), grad._version


def _with_gradients(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], Tensor]]:
    for group in optimizer.param_groups:
        for param in group["params"]:
            if param.grad is not None:
                yield group, param


def _named(optimizer: Optimizer, group: dict[str, Any], param: Tensor) -> str:
    index = next(i for i, p in enumerate(group["params"]) if p is param)
    return f"{type(optimizer).__name__}: {optimizer._name(group, index)}"


def _remove(hooked: dict[int, tuple[Any, Any]]) -> None:
    """Parameters may outlive their optimizer; its hooks must not."""
    for _, hook in hooked.values():
        hook.remove()
