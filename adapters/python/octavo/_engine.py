"""Native groups over torch tensors: addresses in, one multi-tensor call out.

A NativeGroup steps tensors together: one device, one step count. It does not keep them alive: the caller of
step() does. It takes its workspace from torch's allocator, so that memory tools see it, and works on the
current stream.
"""

from __future__ import annotations

import array
import ctypes
import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _abi, _codec

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
_STORES = {"native": "nearest", "stochastic": "stochastic", 24: "bf16+8", 32: "bf16+16"}


@dataclasses.dataclass(slots=True)
class Bound:
    """One tensor of a group. `param` is the local tensor, dense in memory; states lie in its memory order."""

    param: Tensor
    grad: Tensor
    shape: tuple[int, ...]  # in memory order
    state: str
    block_size: int  # 0: the format's default
    master: str | int
    codes: list[Tensor]
    scales: list[Tensor | None]
    residual: Tensor | None
    id: int
    offset: int  # of the first element in the whole parameter


def _device_numbers(device: torch.device) -> tuple[int, int]:
    return (0, 0) if device.type == "cpu" else (1, int(device.index))


def group_config(algorithm: str, device: torch.device, switches: int) -> Any:
    kind, index = _device_numbers(device)
    return _abi.new(
        _abi.GroupConfig,
        algorithm=_abi.parse("optimizer", algorithm),
        switches=switches,
        device_kind=kind,
        device_index=index,
    )


def tensor_spec(
    param: Tensor,
    grad_dtype: torch.dtype,
    shape: Sequence[int],
    state: str,
    block_size: int,
    master: str | int,
) -> Any:
    dims = _codec.core_shape(shape)
    spec = _abi.new(
        _abi.TensorSpec,
        param_dtype=DTYPES[param.dtype],
        grad_dtype=DTYPES[grad_dtype],
        store=_abi.parse("store", _STORES[master]),
        format=_abi.parse("state", state),
        ndim=len(dims),
        numel=param.numel(),
        block_size=block_size,
    )
    spec.shape[: len(dims)] = dims
    return spec


def stream_of(device: torch.device) -> int | None:
    """The current stream's cudaStream_t; None on the CPU."""
    if device.type == "cpu":
        return None
    return int(torch.cuda.current_stream(device).cuda_stream)


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


class NativeGroup:
    def __init__(self, algorithm: str, device: torch.device, tensors: Sequence[Bound], switches: int) -> None:
        self.device = device
        self.on_cpu = device.type == "cpu"
        self.count = len(tensors)
        config = group_config(algorithm, device, switches)
        native = (_abi.TensorArgs * self.count)()
        for slot, t in zip(native, tensors, strict=True):
            slot.spec = tensor_spec(t.param, t.grad.dtype, t.shape, t.state, t.block_size, t.master)
            slot.param, slot.grad, slot.residual = _address(t.param), _address(t.grad), _address(t.residual)
            slot.codes[: len(t.codes)] = [_address(codes) for codes in t.codes]
            slot.scales[: len(t.scales)] = [_address(scales) for scales in t.scales]
            slot.id, slot.offset = t.id, t.offset
        self._library = _abi.library()
        self._handle = ctypes.c_void_p()
        _abi.check(
            self._library.octavo_group_create(
                ctypes.byref(config), ctypes.addressof(native), self.count, ctypes.byref(self._handle)
            )
        )
        self._close = weakref.finalize(self, self._library.octavo_group_destroy, self._handle)
        self._grads = array.array("Q", [t.grad.data_ptr() for t in tensors])
        size = self._library.octavo_group_workspace_bytes(self._handle)
        self.workspace = torch.empty(max(size, 1), dtype=torch.uint8, device=device)
        self.args = _abi.StepArgs()
        self._library.octavo_step_args_init_sized(ctypes.byref(self.args), ctypes.sizeof(_abi.StepArgs))
        self.args.workspace, self.args.workspace_bytes = self.workspace.data_ptr(), size
        self._stream = stream_of(device)  # whose memory the workspace is
        self._report = _abi.new(_abi.StepReport)
        self._refs = (ctypes.byref(self.args), ctypes.byref(self._report))

    def bind_grads(self, addresses: array.array[int]) -> None:
        """Gradients of the same dtypes and sizes, in the tensors' order."""
        if addresses == self._grads:
            return
        _abi.check(
            self._library.octavo_group_rebind_grads(self._handle, addresses.buffer_info()[0], self.count)
        )
        self._grads = addresses

    def step(self) -> Any:
        """One step with `args` as they are; the octavo_step_report."""
        if self.on_cpu:
            self.args.threads = torch.get_num_threads()
        else:
            self.args.stream = self._on_stream()
        _abi.check(self._library.octavo_group_step(self._handle, *self._refs))
        return self._report

    def _on_stream(self) -> int | None:
        """The current stream. Torch's allocator is told when the workspace is used on another one."""
        stream = stream_of(self.device)
        if stream != self._stream and not torch.cuda.is_current_stream_capturing():
            self.workspace.record_stream(torch.cuda.current_stream(self.device))
        return stream


def grad_views(grads: Sequence[Tensor]) -> array.array[int]:
    """octavo_grad_view for each gradient: address, dtype and padding, number of elements."""
    views = array.array("Q", bytes(24 * len(grads)))
    views[0::3] = array.array("Q", [g.data_ptr() for g in grads])
    views[1::3] = array.array("Q", [DTYPES[g.dtype] for g in grads])
    views[2::3] = array.array("Q", [g.numel() for g in grads])
    return views


class NativeNorm:
    """The norm of many gradients of one device, left in `out`: l2, the maximum, and (as int64) the count of
    non-finite elements."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.out = torch.zeros(3, dtype=torch.float64, device=device)
        self._library = _abi.library()
        self._handle = ctypes.c_void_p()
        self._views = array.array("Q")
        self._close: weakref.finalize[Any, Any] | None = None
        self._workspace = torch.empty(0, dtype=torch.uint8, device=device)

    def run(self, views: array.array[int]) -> Tensor:
        """`views` are those of grad_views, with addresses."""
        if views != self._views or not self._handle:
            self._bind(views)
        on_cpu = self.device.type == "cpu"
        _abi.check(
            self._library.octavo_norm_run(
                self._handle,
                self._workspace.data_ptr(),
                self._workspace.numel(),
                self.out.data_ptr(),
                stream_of(self.device),
                torch.get_num_threads() if on_cpu else 0,
            )
        )
        return self.out

    def _bind(self, views: array.array[int]) -> None:
        at, count = views.buffer_info()[0], len(views) // 3
        if self._handle:
            _abi.check(self._library.octavo_norm_rebind(self._handle, at, count))
        else:
            kind, index = _device_numbers(self.device)
            _abi.check(self._library.octavo_norm_create(kind, index, at, count, ctypes.byref(self._handle)))
            self._close = weakref.finalize(self, self._library.octavo_norm_destroy, self._handle)
        self._views = views
        size = self._library.octavo_norm_workspace_bytes(self._handle)
        if self._workspace.numel() < size:
            self._workspace = torch.empty(size, dtype=torch.uint8, device=self.device)
