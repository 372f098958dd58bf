"""The engine of the C ABI: one object per optimizer, told of tensors by their addresses.

It keeps no tensor alive; whoever tells it of one does. NativeGroup is the older call for one device and one
step count, which the operator of ops.py makes.
"""

from __future__ import annotations

import array
import ctypes
import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import _abi, _codec, _describe

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_STORES = {"native": "nearest", "stochastic": "stochastic", 24: "bf16+8", 32: "bf16+16"}
_NO_CALL = _abi.Combine()


def device_numbers(device: torch.device) -> tuple[int, int]:
    return (0, 0) if device.type == "cpu" else (1, int(device.index))


def stream_of(device: torch.device) -> int | None:
    """The current stream's cudaStream_t; None on the CPU."""
    if device.type == "cpu":
        return None
    return int(torch.cuda.current_stream(device).cuda_stream)


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
        self.begun = 0  # tensors
        self._plan = ctypes.byref(self.plan)

    def set_group(self, number: int, switches: int, args: Any, lr_device: torch.device) -> None:
        kind, index = device_numbers(lr_device)
        _abi.check(
            self._library.octavo_engine_set_group(
                self._handle, number, switches, ctypes.byref(args), kind, index
            )
        )

    def set(self, handles: Sequence[int], tensors: Any) -> None:
        """New tensors, or others under known handles: an array of octavo_engine_tensor."""
        numbers = array.array("I", handles)
        _abi.check(
            self._library.octavo_engine_set(
                self._handle, numbers.buffer_info()[0], ctypes.addressof(tensors), len(numbers)
            )
        )

    def remove(self, handles: Sequence[int]) -> None:
        numbers = array.array("I", handles)
        _abi.check(self._library.octavo_engine_remove(self._handle, numbers.buffer_info()[0], len(numbers)))

    def failed_tensor(self) -> int:
        """The handle that the last failing call was about; -1: none."""
        return int(self._library.octavo_engine_failed_tensor(self._handle))

    def begin(self, handles: int, grads: int, dtypes: bytes, with_norm: bool) -> None:
        """The tensors that have a gradient: the addresses of their handles and of their gradients."""
        self.begun = len(dtypes)
        _abi.check(
            self._library.octavo_engine_begin(
                self._handle, handles, grads, dtypes, self.begun, with_norm, self._plan
            )
        )

    def workspace_bytes(self, kind: int, index: int) -> int:
        return int(self._library.octavo_engine_workspace_bytes(self._handle, kind, index))

    def step(self, args: Any) -> None:
        _abi.check(self._library.octavo_engine_step(self._handle, args, None))

    def norm(self, args: Any, parts: Any, combine: Callable[[], None] | None) -> None:
        call = self._library.octavo_engine_norm
        self._combined(combine, lambda back: call(self._handle, args, parts, len(parts), back, None))

    def ready(self, args: Any, own: int | None, combine: Callable[[], None] | None) -> None:
        call = self._library.octavo_engine_ready
        self._combined(combine, lambda back: call(self._handle, args, own, back, None, None))

    def finish(self, args: Any, parts: Any, combine: Callable[[], None] | None) -> None:
        call = self._library.octavo_engine_finish
        self._combined(combine, lambda back: call(self._handle, args, parts, len(parts), back, None))

    def forget_ready(self) -> None:
        self._library.octavo_engine_forget_ready(self._handle)

    @staticmethod
    def _combined(combine: Callable[[], None] | None, call: Callable[[Any], int]) -> None:
        """A call that may call `combine` on its way; what that raises is raised here."""
        raised: list[BaseException] = []

        def back(_: Any) -> int:
            try:
                combine()  # type: ignore[misc]
            except BaseException as error:
                raised.append(error)
            return len(raised)

        status = call(_NO_CALL if combine is None else _abi.Combine(back))
        if raised:
            raise raised[0]
        _abi.check(status)


@dataclasses.dataclass(slots=True)
class Bound:
    """One tensor of a group: contiguous, with its state."""

    param: Tensor
    grad: Tensor
    shape: tuple[int, ...]
    state: str
    block_size: int  # 0: the format's default
    master: str | int
    codes: list[Tensor]
    scales: list[Tensor | None]
    residual: Tensor | None
    id: int
    offset: int  # of the first element in the whole parameter


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _spec(t: Bound) -> Any:
    dims = _codec.core_shape(t.shape)
    spec = _abi.new(
        _abi.TensorSpec,
        param_dtype=DTYPES[t.param.dtype],
        grad_dtype=DTYPES[t.grad.dtype],
        store=store_number(t.master),
        format=_abi.parse("state", t.state),
        ndim=len(dims),
        numel=t.param.numel(),
        block_size=t.block_size,
    )
    spec.shape[: len(dims)] = dims
    return spec


class NativeGroup:
    """Tensors of one device and one step count, stepped by one call."""

    def __init__(self, algorithm: str, device: torch.device, tensors: Sequence[Bound], switches: int) -> None:
        kind, index = device_numbers(device)
        self.device = device
        config = _abi.new(
            _abi.GroupConfig,
            algorithm=_describe.algorithms()[algorithm].number,
            device_kind=kind,
            device_index=index,
            switches=switches,
        )
        native = (_abi.TensorArgs * len(tensors))()
        for slot, t in zip(native, tensors, strict=True):
            slot.spec = _spec(t)
            slot.param, slot.grad, slot.residual = _address(t.param), _address(t.grad), _address(t.residual)
            slot.codes[: len(t.codes)] = [_address(codes) for codes in t.codes]
            slot.scales[: len(t.scales)] = [_address(scales) for scales in t.scales]
            slot.id, slot.offset = t.id, t.offset
        self._library = _abi.library()
        self._handle = ctypes.c_void_p()
        _abi.check(
            self._library.octavo_group_create(
                ctypes.byref(config), ctypes.addressof(native), len(tensors), ctypes.byref(self._handle)
            )
        )
        self._close = weakref.finalize(self, self._library.octavo_group_destroy, self._handle)
        size = self._library.octavo_group_workspace_bytes(self._handle)
        self.workspace = torch.empty(max(size, 1), dtype=torch.uint8, device=device)
        self.args = new_args()
        self.args.workspace, self.args.workspace_bytes = self.workspace.data_ptr(), size

    def step(self) -> None:
        """One step with `args` as they are."""
        if self.device.type == "cpu":
            self.args.threads = torch.get_num_threads()
        self.args.stream = stream_of(self.device)
        _abi.check(self._library.octavo_group_step(self._handle, ctypes.byref(self.args), None))


def new_args() -> Any:
    """octavo_step_args with the library's defaults."""
    args = _abi.StepArgs()
    _abi.library().octavo_step_args_init_sized(ctypes.byref(args), ctypes.sizeof(_abi.StepArgs))
    return args
