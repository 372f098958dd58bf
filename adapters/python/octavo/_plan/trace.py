"""What a run of fake tensors would do to a GPU: its memory as events, its work as kernels.

A piece of memory is a storage: it is taken when an operator returns a tensor of a new one, and given back
when the last tensor of it dies, which CPython's counts of references make as prompt as on a device. Views,
operators in place and tensors that autograd saves need nothing of their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from . import kernels
from ._core import ACTIVATIONS, GIVEN_BACK, WORKSPACE, Gpu, Kernel
from .fake_gpu import CPU, has_gpu

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"
_DEVICE, _READ = torch.ops.prim.device.default, torch.ops.aten._local_scalar_dense.default


class Recorder(TorchDispatchMode):
    def __init__(self, gpu: Gpu, device: torch.device) -> None:
        super().__init__()
        self.device = device
        # [number, bytes or GIVEN_BACK, owner]: lists, because who owns a tensor may turn out later.
        self.events: list[list[int]] = []
        self.kernels: list[Kernel] = []
        self.phase = FORWARD
        self.owner = ACTIVATIONS
        self.failed: tuple[Any, str, BaseException] | None = None  # operator, module and what it has raised
        self.modules: list[str] = []  # the names of those whose forward is running
        self._alive: dict[int, tuple[list[int], Any]] = {}  # by the storage's address
        self._engine_asks = not has_gpu() and device != CPU
        self._numbers = 0
        self._with_workspace: set[str] = set()  # phases that have a handle of cuBLAS
        self._workspace = (32 << 20) if gpu.capability[0] >= 9 else 8320 << 10

    # --- Memory ---

    @property
    def last_number(self) -> int:
        return self._numbers

    def take(self, size: int, owner: int) -> list[int]:
        """An event of memory that no tensor has; whoever asks gives it back, or keeps it."""
        self._numbers += 1
        event = [self._numbers, size, owner]
        self.events.append(event)
        return event

    def give_back(self, number: int) -> None:
        self.events.append([number, GIVEN_BACK, 0])

    def see(self, tensor: Tensor) -> None:
        """Takes the memory of a tensor, if it is new and on the device."""
        if tensor.device != self.device:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        known = self._alive.get(key)
        if known is not None:
            if known[0][1] == storage.nbytes():
                return
            self._died(key, known[0][0])  # it was resized
        size = storage.nbytes()
        if size == 0:
            return
        event = self.take(size, self.owner)
        number = event[0]
        self._alive[key] = event, weakref.ref(storage, lambda _: self._died(key, number))

    def _died(self, key: int, number: int) -> None:
        known = self._alive.get(key)
        if known is not None and known[0][0] == number:
            del self._alive[key]
            self.give_back(number)

    def own(self, tensor: Tensor | None, owner: int) -> None:
        """Says whose memory a tensor's is."""
        if tensor is not None and (known := self._alive.get(tensor.untyped_storage()._cdata)) is not None:
            known[0][2] = owner

    # --- Operators ---

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE:
            # Of the autograd engine, which must not look for the GPU: see fake_gpu.py.
            if self._engine_asks and self.phase == BACKWARD and not torch.is_grad_enabled():
                return CPU
            return args[0].device
        if func is _READ and self.phase == OPTIMIZER:
            return 1.0  # the count of steps, in torch.optim's
        try:
            out = func(*args, **kwargs)
        except Exception as error:
            if self.failed is None or self.failed[2] is not error:
                self.failed = func, self.modules[-1] if self.modules else "", error
            raise
        made = list(_tensors(out))
        new = [t for t in made if t.device == self.device and self._is_new(t)]
        work, scratch = kernels.of(func, args, kwargs, out, new)
        if work and kernels.by_cublas(func):
            self._multiply()
        held = self.take(scratch, WORKSPACE) if scratch else None
        for tensor in made:
            self.see(tensor)
        if held is not None:
            self.give_back(held[0])
        if any(t.device == self.device for t in made) or not made:
            self.kernels += work
        return out

    def _is_new(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage()._cdata not in self._alive

    def _multiply(self) -> None:
        """cuBLAS has a handle per thread, and autograd a thread of its own; each has a workspace, which
        torch's allocator counts.
        """
        thread = BACKWARD if self.phase == BACKWARD else FORWARD
        if thread not in self._with_workspace:
            self._with_workspace.add(thread)
            self.take(self._workspace, WORKSPACE)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


def repeated(events: Iterable[list[int]], numbers: int) -> tuple[list[list[int]], int]:
    """The events of a step once more, as a later step has them: under new numbers from `numbers` on, and
    without what the first one has kept. Also the next free number.
    """
    given_back = {number for number, size, _ in events if size == GIVEN_BACK}
    names: dict[int, int] = {}
    found = []
    for number, size, owner in events:
        if size != GIVEN_BACK:
            if number not in given_back:
                continue
            numbers += 1
            names[number] = numbers
        elif number not in names:
            continue  # from before the step
        found.append([names[number], size, owner])
    return found, numbers
