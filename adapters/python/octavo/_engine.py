"""The engine of the C ABI: one object per optimizer, which knows tensors by their addresses.

It keeps no tensor alive. The caller must do that while the engine knows the tensor.
"""

from __future__ import annotations

import array
import ctypes
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import _abi, _describe

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_STORES = {"native": "nearest", "stochastic": "stochastic", 24: "bf16+8", 32: "bf16+16"}
_NO_CALL = _abi.EngineCombine()
DEVICE, HOST, STREAM = range(3)  # octavo_engine_tensor.residence
WEIGHTS, GRADIENTS = range(2)  # octavo_engine_wait
TO_HOST, TO_DEVICE = range(2)  # octavo_engine_refresh


def refuse_amd(device: torch.device) -> None:
    """Raises RuntimeError for a GPU of a ROCm build of torch, which calls AMD's GPUs `cuda` as well."""
    if device.type == "cuda" and torch.version.hip is not None:
        raise RuntimeError(
            f"{device} is an AMD GPU (this torch is a ROCm build, HIP {torch.version.hip}): "
            "octavo has code for CPUs and NVIDIA GPUs only"
        )


def device_numbers(device: torch.device) -> tuple[int, int]:
    refuse_amd(device)
    return (0, 0) if device.type == "cpu" else (1, int(device.index))


def stream_of(device: torch.device) -> int | None:
    """Returns the current stream's cudaStream_t; None on the CPU."""
    return None if device.type == "cpu" else stream_of_gpu(device.index)


def stream_of_gpu(index: int) -> int:
    # Returns torch.cuda.current_stream(device).cuda_stream, but faster: hooks call it hundreds of times.
    return int(torch._C._cuda_getCurrentRawStream(index))


def record_use(tensor: Tensor, stream: int | None) -> None:
    """Call before a tensor that was allocated on `stream` is dropped: torch's allocator returns its memory to
    that stream, and the current stream, which is ordered after its last use, may be another one.
    """
    if stream is not None and stream != stream_of(tensor.device):
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


def store_number(master: str | int) -> int:
    return _abi.parse("store", _STORES[master])


class Engine:
    def __init__(self, algorithm: str) -> None:
        self._library = _abi.library()
        self._handle = ctypes.c_void_p()
        number = _describe.algorithms()[algorithm].number
        _abi.check(self._library.octavo_engine_create(number, ctypes.byref(self._handle)))
        self._close = weakref.finalize(self, self._library.octavo_engine_destroy, self._handle)
        self.plan = _abi.new(_abi.EnginePlan)
        self.begun = 0  # the number of tensors of the last begin()
        self.raised: list[BaseException] = []  # errors of callbacks that the library has called
        self._plan = ctypes.byref(self.plan)

    def set_group(self, number: int, switches: int, args: Any, lr_device: torch.device) -> None:
        kind, index = device_numbers(lr_device)
        _abi.check(
            self._library.octavo_engine_set_group(
                self._handle, number, switches, ctypes.byref(args), kind, index
            )
        )

    def set(self, handles: Sequence[int], tensors: Any) -> None:
        """Adds tensors, or replaces those of the same handles: an array of octavo_engine_tensor."""
        numbers = array.array("I", handles)
        _abi.check(
            self._library.octavo_engine_set(self._handle, numbers.buffer_info()[0], tensors, len(numbers))
        )

    def remove(self, handles: Sequence[int]) -> None:
        numbers = array.array("I", handles)
        _abi.check(self._library.octavo_engine_remove(self._handle, numbers.buffer_info()[0], len(numbers)))

    def failed_tensor(self) -> int:
        """Returns the handle of the tensor that caused the last failure; -1: no tensor did."""
        return int(self._library.octavo_engine_failed_tensor(self._handle))

    def begin(self, handles: int, grads: int, dtypes: bytes, with_norm: bool) -> None:
        """Begins a step of tensors with a gradient: the addresses of their handles and of their gradients."""
        self.begun = len(dtypes)
        call = self._library.octavo_engine_begin
        if status := call(self._handle, handles, grads, dtypes, self.begun, with_norm, self._plan):
            _abi.check(status)

    def workspace_bytes(self, kind: int, index: int) -> int:
        return int(self._library.octavo_engine_workspace_bytes(self._handle, kind, index))

    def step(self, args: Any) -> None:
        status = self._library.octavo_engine_step(self._handle, args, None)
        if status or self.raised:
            self._check(status)

    def _check(self, status: int) -> None:
        """Raises the error of a callback, or the library's own."""
        if self.raised:
            raise self.raised.pop()
        _abi.check(status)

    def norm(self, args: Any, parts: Any, combine: Callable[[], None] | None) -> None:
        call = self._library.octavo_engine_norm
        if combine is not None:
            self._combined(combine, lambda back: call(self._handle, args, parts, len(parts), back, None))
        elif status := call(self._handle, args, parts, len(parts), _NO_CALL, None):
            _abi.check(status)

    def ready(self, args: Any, own: int | None, combine: Callable[[], None] | None) -> None:
        call = self._library.octavo_engine_ready
        self._combined(combine, lambda back: call(self._handle, args, own, back, None, None))

    def finish(self, args: Any, parts: Any, combine: Callable[[], None] | None) -> None:
        call = self._library.octavo_engine_finish
        self._combined(combine, lambda back: call(self._handle, args, parts, len(parts), back, None))

    def forget_ready(self) -> None:
        self._library.octavo_engine_forget_ready(self._handle)

    # --- Offload: include/octavo/octavo.h has the contracts ---

    def take(self, handles: int, grads: int, dtypes: bytes, device: torch.device) -> None:
        """Copies gradients to host memory, and adds them to those of the same step that are there."""
        _abi.check(
            self._library.octavo_engine_take(
                self._handle, handles, grads, dtypes, len(dtypes), *device_numbers(device), stream_of(device)
            )
        )

    def drop(self, handles: Sequence[int] = ()) -> None:
        """Discards gradients in host memory; without handles: all."""
        numbers = array.array("I", handles)
        _abi.check(self._library.octavo_engine_drop(self._handle, numbers.buffer_info()[0], len(numbers)))

    def holds(self, handle: int) -> bool:
        """Returns whether a gradient of this tensor is in host memory."""
        return bool(self._library.octavo_engine_holds(self._handle, handle))

    def wait(self, handles: array.array[int] | None, what: int, device: torch.device) -> None:
        """Orders the current stream after WEIGHTS or GRADIENTS of these tensors; None: of all."""
        at, count = (None, 0) if handles is None else handles.buffer_info()
        kind, index = device_numbers(device)
        _abi.check(
            self._library.octavo_engine_wait(self._handle, at, count, what, kind, index, stream_of(device))
        )

    def refresh(self, handles: Sequence[int], way: int, device: torch.device) -> None:
        """Copies parameters TO_HOST or TO_DEVICE; without handles: all that have a copy in host memory."""
        numbers = array.array("I", handles)
        at, (kind, index) = numbers.buffer_info()[0] if numbers else None, device_numbers(device)
        call = self._library.octavo_engine_refresh
        _abi.check(call(self._handle, at, len(numbers), way, kind, index, stream_of(device)))

    def synchronize(self) -> None:
        _abi.check(self._library.octavo_engine_synchronize(self._handle))

    def set_order(self, handles: Sequence[int]) -> None:
        numbers = array.array("I", handles)
        at = numbers.buffer_info()[0]
        _abi.check(self._library.octavo_engine_set_order(self._handle, at, len(numbers)))

    def staging_bytes(self, kind: int, index: int) -> int:
        return int(self._library.octavo_engine_staging_bytes(self._handle, kind, index))

    def host_bytes(self) -> int:
        return int(self._library.octavo_engine_host_bytes(self._handle))

    def _combined(self, combine: Callable[[], None] | None, call: Callable[[Any], int]) -> None:
        """Makes a call that may call `combine`, and raises what `combine` has raised."""

        def back(_: Any) -> int:
            return self.caught(combine)  # type: ignore[arg-type]

        self._check(call(_NO_CALL if combine is None else _abi.EngineCombine(back)))

    def caught(self, call: Callable[[], None]) -> int:
        """Returns the result of a callback to the library: 1 if `call` raises; the error is raised later."""
        try:
            call()
        except BaseException as error:
            self.raised.append(error)
            return 1
        return 0


def new_args() -> Any:
    """Returns octavo_step_args with the library's defaults."""
    args = _abi.new(_abi.StepArgs)
    _abi.check(_abi.library().octavo_step_args_init(ctypes.byref(args)))
    return args
