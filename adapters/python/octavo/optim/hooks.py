"""Hooks that autograd calls when a parameter's gradient is complete. Subclasses decide how gradients are
used.

A call of the engine costs the host the same time for one parameter as for many, so parameters may be gathered
until their gradients have GATHERED_BYTES bytes. The rest is used when the backward pass ends, on a stream
that autograd orders after all others. Parameters that are used earlier were gathered on one stream, and are
used on this stream.
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

GATHERED_BYTES = 64 << 20

_Place = tuple[torch.device, int | None]  # a device and a stream


class GradientHooks:
    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = weakref.ref(optimizer)
        self._gathered: dict[_Place, dict[int, Tensor]] = {}  # parameters with complete gradients, by id
        self._bytes: dict[_Place, int] = {}  # of the gathered gradients
        self._threads: dict[int, int] = {}  # of the backward pass, by the id of a gathered parameter
        self._hooked: dict[int, tuple[weakref.ref[Tensor], Any]] = {}
        # Autograd has one thread per device, and all of them use this optimizer.
        self._lock = optimizer._lock
        weakref.finalize(optimizer, _remove, self._hooked)
        for group in optimizer.param_groups:
            self.watch(group)

    def completed(self, optimizer: Optimizer, group: dict[str, Any], param: Tensor) -> None:
        """Called when the parameter's gradient is complete."""
        raise NotImplementedError

    def use(self, optimizer: Optimizer, params: list[Tensor]) -> None:
        """Uses the gradients of these parameters, which are on one device."""
        raise NotImplementedError

    def watch(self, group: dict[str, Any]) -> None:
        """Adds hooks to the group's parameters that are new or were frozen."""
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
        # A GPU has one thread for all backward passes, so only those on the CPU are distinguished by threads.
        # Passes of different models may run at the same time.
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
            if size >= GATHERED_BYTES:
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
        """Uses the gathered parameters. It is also called after a backward pass that has failed."""
        with self._lock:
            optimizer = self._optimizer()
            for place in list(self._gathered):
                if optimizer is not None:
                    self._flush(optimizer, place)

    def forget(self) -> None:
        """Forgets the gathered parameters, which keep their gradients."""
        with self._lock:
            self._gathered, self._bytes, self._threads = {}, {}, {}


def averaged_later(param: Tensor) -> bool:
    """Returns whether DistributedDataParallel may average the gradient after its hooks were called. FSDP2
    calls the hooks after it has reduced its shards of gradients.
    """
    return dist.is_available() and dist.is_initialized() and not is_sharded(param)


def _remove(hooked: dict[int, tuple[Any, Any]]) -> None:
    """Removes the hooks with their optimizer, because parameters may live longer."""
    for _, hook in hooked.values():
        hook.remove()
