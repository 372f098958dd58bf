"""Records a run of fake tensors: the memory of a GPU as events, its work as kernels.

A piece of memory is a storage. It is allocated when an operator returns a tensor of a new storage, and freed
with the last tensor of the storage; CPython's reference counts make this as prompt as on a device. Views,
operators in place and tensors that autograd saves need no memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from . import kernels
from ._core import ACTIVATIONS, FREED, WORKSPACE, Gpu
from .fake_gpu import CPU, has_gpu

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
_DEVICE, _READ = torch.ops.prim.device.default, torch.ops.aten._local_scalar_dense.default


class Recorder(TorchDispatchMode):
    def __init__(self, gpu: Gpu, device: torch.device) -> None:
        super().__init__()
        self.device = device
        # [number, bytes or FREED, owner]: lists, because the owner may be set later.
        self.events: list[list[int]] = []
        self.kernels: list[Any] = []
        self.phase = FORWARD
        self.owner = ACTIVATIONS
        self.failed: tuple[Any, str, BaseException] | None = None  # operator, module, error
        self.modules: list[str] = []  # names of modules whose forward is running
        self._alive: dict[int, tuple[list[int], Any]] = {}  # by the storage's address
        self._answers_engine = not has_gpu() and device != CPU  # fake_gpu.py explains it
        self._numbers = 0
        self._with_workspace: set[str] = set()  # threads with a cuBLAS handle, by their phases
        self._workspace = (32 << 20) if gpu.capability[0] >= 9 else 8320 << 10

    # --- Memory ---

    @property
    def last_number(self) -> int:
        return self._numbers

    def allocate(self, size: int, owner: int) -> list[int]:
        """Returns an event of memory that no tensor has. The caller may free it."""
        self._numbers += 1
        event = [self._numbers, size, owner]
        self.events.append(event)
        return event

    def free(self, number: int) -> None:
        self.events.append([number, FREED, 0])

    def record_tensor(self, tensor: Tensor) -> None:
        """Allocates the memory of a tensor, if it is new and on the device."""
        if tensor.device != self.device:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        known = self._alive.get(key)
        if known is not None:
            if known[0][1] == size:
                return
            self._died(key, known[0][0])  # it was resized
        if size == 0:
            return
        event = self.allocate(size, self.owner)
        number = event[0]
        self._alive[key] = event, weakref.ref(storage, lambda _: self._died(key, number))

    def _died(self, key: int, number: int) -> None:
        known = self._alive.get(key)
        if known is not None and known[0][0] == number:
            del self._alive[key]
            self.free(number)

    def set_owner(self, tensor: Tensor | None, owner: int) -> None:
        if tensor is not None and (known := self._alive.get(tensor.untyped_storage()._cdata)) is not None:
            known[0][2] = owner

    # --- Operators ---

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE:
            # The autograd engine must not look for the GPU; fake_gpu.py explains it.
            if self._answers_engine and self.phase == BACKWARD and not torch.is_grad_enabled():
                return CPU
            return args[0].device
        if func is _READ and self.phase == OPTIMIZER:
            return 1.0  # torch.optim reads its step count
        try:
            out = func(*args, **kwargs)
        except Exception as error:
            if self.failed is None or self.failed[2] is not error:
                self.failed = func, self.modules[-1] if self.modules else "", error
            raise
        made = list(kernels.tensors_in(out))
        new = [t for t in made if t.device == self.device and t.untyped_storage()._cdata not in self._alive]
        work, scratch = kernels.kernels_of(func, args, kwargs, out, new)
        if work and kernels.by_cublas(func):
            self._allocate_workspace()
        temporary = self.allocate(scratch, WORKSPACE) if scratch else None
        for tensor in made:
            self.record_tensor(tensor)
        if temporary is not None:
            self.free(temporary[0])
        if any(t.device == self.device for t in made) or not made:
            self.kernels += work
        return out

    def _allocate_workspace(self) -> None:
        """Allocates the workspace of the thread's cuBLAS handle, which torch's allocator counts. Autograd has
        a separate thread.
        """
        thread = BACKWARD if self.phase == BACKWARD else FORWARD
        if thread not in self._with_workspace:
            self._with_workspace.add(thread)
            self.allocate(self._workspace, WORKSPACE)


def repeated(events: Iterable[list[int]], numbers: int) -> tuple[list[list[int]], int]:
    """Returns the events of a step as a later step has them: with new numbers above `numbers`, and without
    memory that the first step has kept. Also returns the last number.
    """
    freed = {number for number, size, _ in events if size == FREED}
    names: dict[int, int] = {}
    found = []
    for number, size, owner in events:
        if size != FREED:
            if number not in freed:
                continue
            numbers += 1
            names[number] = numbers
        elif number not in names:
            continue  # from before the step
        found.append([names[number], size, owner])
    return found, numbers
