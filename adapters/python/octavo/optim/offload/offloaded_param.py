"""A parameter with a copy in host memory that any optimizer of torch can step. The gradient is copied there
on a separate stream, after the current stream (None: the parameter is on the CPU).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .host_memory import Slab, bytes_of


class OffloadedParam:
    def __init__(self, param: Tensor, stream: Any) -> None:
        self.param, self._stream = param, stream
        form = torch.empty_like(param, device="meta", requires_grad=False)
        slab = Slab(max(1, 2 * bytes_of([form])), stream is not None)
        found = slab.tensors(0, {"copy": form, "grad": form})
        self.copy, self._room = found["copy"].copy_(param.detach()).requires_grad_(), found["grad"]
        self._version, self._address = param._version, param.data_ptr()
        self._grad: Tensor | None = None  # in host memory, or being copied there
        self._more: Tensor | None = None  # being copied, to be added
        self._event: Any = None  # when both are there
        # The gradient that was copied, and its version; None: it was removed.
        self._seen: tuple[Tensor, int] | None = None

    def has_gradient(self) -> bool:
        return self.param.grad is not None or (self._grad is not None and self._seen is None)

    def copy_grad(self, free: bool) -> None:
        """Copies the gradient to host memory. `free`: it is added there, and removed from the parameter."""
        grad: Any = self.param.grad
        if free and self._grad is not None and self._seen is None:
            self.complete()
            self._more = self._copy_to_host(grad, None)
        else:
            self._grad = self._copy_to_host(grad, self._room if grad.dtype == self._room.dtype else None)
        self._event = None if self._stream is None else self._stream.record_event()
        self._seen = None if free else (grad, grad._version)
        if free:
            self.param.grad = None

    def _copy_to_host(self, grad: Tensor, to: Tensor | None) -> Tensor:
        if to is None:
            to = torch.empty_like(grad, device="cpu", pin_memory=self._stream is not None)
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(grad.device))
            grad.record_stream(self._stream)
        with self._queued():
            return to.copy_(grad, non_blocking=True)

    def _queued(self) -> Any:
        return contextlib.nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def refresh(self) -> None:
        """Copies a gradient that is new or was written after its hook, and the weight if it was written."""
        if (self.param._version, self.param.data_ptr()) != (self._version, self._address):
            self.sync(True)
        grad = self.param.grad
        if grad is not None and (self._seen is None or self._seen[0] is not grad):
            self.copy_grad(self._grad is not None and self._seen is None)
        elif grad is not None and self._seen is not None and self._seen[1] != grad._version:
            self.copy_grad(False)

    def complete(self) -> Tensor:
        """Waits for the gradient and returns it."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        assert self._grad is not None
        if self._more is not None:
            self._grad += self._more
            self._more = None
        return self._grad

    def step(self, step: Callable[[], None], factor: Tensor | None) -> None:
        """Steps the copy with the gradient times `factor`, and copies it to the parameter."""
        grad = self.complete()
        self.copy.grad = grad if factor is None else grad.mul_(factor)
        step()
        self.copy.grad = self._grad = self._seen = None
        with self._queued():
            self.param.detach().copy_(self.copy.detach(), non_blocking=True)
        self._version = self.param._version

    def sync(self, to_host: bool) -> None:
        if self.param.shape != self.copy.shape:
            raise RuntimeError(
                f"CPUOffloadOptimizer: a parameter has shape {tuple(self.param.shape)} now, expected "
                f"{tuple(self.copy.shape)}; parameters must keep their shape (or make a new optimizer)"
            )
        source, to = (self.param, self.copy) if to_host else (self.copy, self.param)
        to.detach().copy_(source.detach())
        self._version, self._address = self.param._version, self.param.data_ptr()

    def forget(self) -> None:
        if self._event is not None:
            self._event.synchronize()
        self._grad = self._more = self._event = self._seen = None
