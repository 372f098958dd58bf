"""Hooks of parameters whose gradients are complete, in the backward pass. What is done with the gradients is
for those who derive from this.

A call of the engine costs the host as much for one parameter as for many, so parameters may be gathered until
their gradients have TOGETHER bytes; the rest is used when the backward pass ends, whose stream autograd
orders behind all others. Those that are used before then come from one stream, and are used on it.
"""

from __future__ import annotations

import weakref
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._engine import stream_of
from .._shards import is_sharded

if TYPE_CHECKING:
    from .optimizer import Optimizer

TOGETHER = 64 << 20

_Place = tuple[torch.device, int | None]  # and a stream


class GradientHooks:
    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._gathered: dict[_Place, dict[int, Tensor]] = {}  # complete, and soon to be used; by id
        self._bytes: dict[_Place, int] = {}  # of their gradients
        self._threads: dict[int, int] = {}  # by the id of a gathered parameter: whose backward pass it was
        self._hooked: dict[int, tuple[weakref.ref[Tensor], Any]] = {}
        # Autograd has a thread per device, and all of them use this one optimizer.
        self._lock = optimizer._lock
        weakref.finalize(optimizer, _remove, self._hooked)
        for group in optimizer.param_groups:
            self.watch(group)

    def completed(self, optimizer: Optimizer, group: dict[str, Any], param: Tensor) -> None:
        """Its gradient is complete."""
        raise NotImplementedError

    def use(self, optimizer: Optimizer, params: list[Tensor]) -> None:
        """Does with the gradients of these, which are on one device, what is to be done."""
        raise NotImplementedError

    def watch(self, group: dict[str, Any]) -> None:
        """Hooks the group's parameters, where they are new or were frozen."""
        owner = self._optimizer

        def called(param: Tensor) -> None:
            optimizer = owner()
            if optimizer is None:
                return
            groups = optimizer.param_groups
            if groups[-1] is group or any(g is group for g in groups):
                with self._lock:
                    self.completed(optimizer, group, param)

        for param in group["params"]:
            known = self._hooked.get(id(param))
            if param.requires_grad and (known is None or known[0]() is not param):
                handle = param.register_post_accumulate_grad_hook(called)
                self._hooked[id(param)] = (weakref.ref(param), handle)

    def gather(self, optimizer: Optimizer, param: Tensor) -> None:
        """Uses the parameter with others of its stream, at the latest when the backward pass ends."""
        grad: Any = param.grad
        device = param.device
        # A GPU has one thread for all backward passes. Passes of different models may run at the same time.
        other = device.type == "cpu" and self._threads.get(id(param), get_ident()) != get_ident()
        if grad is None or other:
            raise RuntimeError(
                f"{type(optimizer).__name__}: two threads run backward passes of one model at the same time, "
                "and gradient_release and offload_gradients take its gradients meanwhile; run one pass after "
                "the other, or use neither option"
            )
        if not self._gathered:
            torch.autograd.Variable._execution_engine.queue_callback(self.end_of_backward)
        place = device, stream_of(device)
        gathered = self._gathered.setdefault(place, {})
        if id(param) not in gathered:
            gathered[id(param)] = param
            self._threads[id(param)] = get_ident()
            self._bytes[place] = size = self._bytes.get(place, 0) + grad.nbytes
            if size >= TOGETHER:
                self._flush(optimizer, place)

    def _flush(self, optimizer: Optimizer, place: _Place) -> None:
        self._bytes.pop(place, None)
        gathered = self._gathered.pop(place, {})
        for number in gathered:
            self._threads.pop(number, None)
        params = [param for param in gathered.values() if param.grad is not None]
        if params:
            self.use(optimizer, params)

    def end_of_backward(self) -> None:
        """Uses what was gathered. Also called where a backward pass has failed before its end."""
        with self._lock:
            optimizer = self._optimizer()
            for place in list(self._gathered):
                if optimizer is not None:
                    self._flush(optimizer, place)

    def forget(self) -> None:
        """What was gathered stays with its parameters."""
        with self._lock:
            self._gathered, self._bytes, self._threads = {}, {}, {}


def averaged_later(param: Tensor) -> bool:
    """Whether DistributedDataParallel may average the gradient after its hooks were called. FSDP2 calls them
    when its shards of gradients are reduced.
    """
    return dist.is_available() and dist.is_initialized() and not is_sharded(param)


def _remove(hooked: dict[int, tuple[Any, Any]]) -> None:
    """Parameters may outlive their optimizer; its hooks must not."""
    for _, hook in hooked.values():
        hook.remove()
