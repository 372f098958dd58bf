"""The core's groups and codecs over plain arrays, for the Python tests and benchmarks: the package's _abi,
nothing of the package above it, and the arrays kept alive that a group points into.

An array here is a numpy array or a torch tensor, contiguous; torch itself is not imported. Tensors are on
the CPU, but for those of a group whose parameters are all on one GPU: its state and workspace come from the
parameters' `allocate`, and `step` takes the stream to work on. The library is the one that OCTAVO_LIBRARY
names, else the package's own or build/lib/liboctavo.so.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from octavo._abi import (
    GroupConfig,
    MomentSpec,
    OctavoError,
    StepArgs,
    StepReport,
    TensorArgs,
    TensorLayout,
    TensorSpec,
    check,
    i64,
    implementation,
    library,
    library_path,
    parse,
)

__all__ = ["OctavoError", "check", "implementation", "library", "library_path", "parse"]

FIRST, SECOND = 0, 1  # moments

Array = Any  # numpy.ndarray or torch.Tensor: torch is not imported here
Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Allocate = Callable[[int], Array]


def address(array: Array | None) -> int:
    if array is None:
        return 0
    if isinstance(array, np.ndarray):
        if not array.flags["C_CONTIGUOUS"]:
            raise ValueError("the array is not contiguous")
        return int(array.ctypes.data)
    if array.device.type != "cpu":
        raise ValueError("the tensor is not on the CPU")
    return pointer(array)


def pointer(array: Array | None) -> int:
    """The address of an array on any device."""
    if array is None or isinstance(array, np.ndarray):
        return address(array)
    if not array.is_contiguous():
        raise ValueError("the tensor is not contiguous")
    return int(array.data_ptr())


def device_of(array: Array) -> tuple[int, int]:
    """Device kind (0 CPU, 1 CUDA) and index, as octavo_group_config has them."""
    if isinstance(array, np.ndarray) or array.device.type == "cpu":
        return 0, 0
    if array.device.type != "cuda":
        raise ValueError(f"got a tensor on {array.device}, expected the CPU or CUDA")
    return 1, int(array.device.index)


def numel(array: Array) -> int:
    return int(array.size if isinstance(array, np.ndarray) else array.numel())


def dtype_number(array: Array) -> int:
    return parse("dtype", str(array.dtype).removeprefix("torch."))


def _moment_spec(moment: int, state: str, shape: Sequence[int], block_size: int) -> MomentSpec:
    spec = MomentSpec(struct_size=ctypes.sizeof(MomentSpec), moment=moment, format=parse("state", state))
    spec.ndim, spec.numel, spec.block_size = len(shape), int(np.prod(shape, dtype=np.int64)), block_size
    spec.shape[: len(shape)] = list(shape)
    return spec


def moment_layout(moment: int, state: str, shape: Sequence[int], block_size: int = 0) -> tuple[int, int]:
    """Bytes of codes and number of scales."""
    codes, scales = i64(), i64()
    spec = _moment_spec(moment, state, shape, block_size)
    check(library().octavo_moment_layout(ctypes.byref(spec), ctypes.byref(codes), ctypes.byref(scales)))
    return codes.value, scales.value


def encode(values: Floats, moment: int, state: str, block_size: int = 0) -> tuple[Bytes, Floats]:
    """fp32 -> codes and scales."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    codes_bytes, scale_count = moment_layout(moment, state, values.shape, block_size)
    codes, scales = np.zeros(codes_bytes, np.uint8), np.zeros(scale_count, np.float32)
    spec = _moment_spec(moment, state, values.shape, block_size)
    check(library().octavo_encode(ctypes.byref(spec), address(values), address(codes), address(scales)))
    return codes, scales


def decode(
    codes: Array, scales: Array, moment: int, state: str, shape: Sequence[int], block_size: int = 0
) -> Floats:
    """Codes and scales -> fp32. The buffers may be larger than the layout, not smaller."""
    codes_bytes, scale_count = moment_layout(moment, state, shape, block_size)
    if _byte_size(codes) < codes_bytes or _byte_size(scales) < 4 * scale_count:
        raise ValueError(f"expected {codes_bytes} bytes of codes and {scale_count} scales")
    values = np.empty(shape, np.float32)
    spec = _moment_spec(moment, state, shape, block_size)
    check(library().octavo_decode(ctypes.byref(spec), address(codes), address(scales), address(values)))
    return values


def code_map(moment: int, state: str) -> Floats:
    """The values of all codes of 8bit or 4bit, in the codes' order."""
    codes = np.arange(256 if state == "8bit" else 16, dtype=np.uint8)
    packed = codes if state == "8bit" else (codes[0::2] * np.uint8(16)) | codes[1::2]
    return decode(packed, np.ones(1, np.float32), moment, state, (codes.size,))


def _byte_size(array: Array) -> int:
    return int(array.nbytes)


def _numpy_zeros(byte_count: int) -> Bytes:
    return np.zeros(byte_count, np.uint8)


class Parameter:
    """A parameter, its gradient and its state buffers. Zero bytes are the initial state of every format.

    `allocate` gives a zeroed array of so many bytes: benchmarks pass torch's, so that both sides use one
    allocator.
    """

    def __init__(
        self,
        param: Array,
        grad: Array,
        state: str = "fp32",
        *,
        store: str = "nearest",
        block_size: int = 0,
        allocate: Allocate = _numpy_zeros,
    ) -> None:
        if numel(param) != numel(grad):
            raise ValueError(f"the gradient has {numel(grad)} elements, expected {numel(param)}")
        self.param, self.grad, self.state, self.block_size = param, grad, state, block_size
        self._store, self.new_buffer = store, allocate
        self.codes: list[Array] = []
        self.scales: list[Array] = []
        self.moments: tuple[int, ...] = ()
        self.residual: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(n) for n in self.param.shape)

    def spec(self) -> TensorSpec:
        shape = self.shape
        spec = TensorSpec(
            struct_size=ctypes.sizeof(TensorSpec),
            param_dtype=dtype_number(self.param),
            grad_dtype=dtype_number(self.grad),
            store=parse("store", self._store),
            format=parse("state", self.state),
            ndim=len(shape),
            numel=numel(self.param),
            block_size=self.block_size,
        )
        spec.shape[: len(shape)] = list(shape)
        return spec

    def allocate(self, layout: TensorLayout, moments: tuple[int, ...]) -> None:
        self.moments = moments
        self.codes = [self.new_buffer(layout.codes_bytes[i]) for i in range(layout.slots)]
        self.scales = [self.new_buffer(4 * layout.scales[i]) for i in range(layout.slots)]
        self.residual = self.new_buffer(layout.residual_bytes) if layout.residual_bytes else None

    def args(self, index: int) -> TensorArgs:
        args = TensorArgs(spec=self.spec(), id=index)
        args.param, args.grad, args.residual = pointer(self.param), pointer(self.grad), pointer(self.residual)
        args.codes[: len(self.codes)] = [pointer(codes) for codes in self.codes]
        args.scales[: len(self.scales)] = [pointer(scales) for scales in self.scales]
        return args

    def state_bytes(self) -> int:
        return sum(_byte_size(buffer) for buffer in [*self.codes, *self.scales])

    def moment(self, slot: int) -> Floats:
        """The slot's moment in fp32."""
        moment = self.moments[slot]
        return decode(self.codes[slot], self.scales[slot], moment, self.state, self.shape, self.block_size)

    def load(self, slot: int, codes: Array, scales: Array) -> None:
        """Overwrites the slot with another's bytes: numpy arrays or tensors of the layout's sizes."""
        for target, source in ((self.codes[slot], codes), (self.scales[slot], scales)):
            if _byte_size(target) != _byte_size(source):
                raise ValueError(f"got {_byte_size(source)} bytes, expected {_byte_size(target)}")
            ctypes.memmove(address(target), address(source), _byte_size(target))


class Group:
    """Parameters that step together. Their buffers must not be replaced while the group lives."""

    def __init__(
        self, algorithm: str, parameters: Sequence[Parameter], *, amsgrad: bool = False, momentum: bool = True
    ) -> None:
        self.parameters = list(parameters)
        self._handle = ctypes.c_void_p()
        arrays = [array for p in self.parameters for array in (p.param, p.grad)]
        if len(devices := {device_of(array) for array in arrays} or {(0, 0)}) > 1:
            raise ValueError("the parameters and gradients of a group are on several devices")
        (device,) = devices
        config = GroupConfig(
            ctypes.sizeof(GroupConfig), parse("optimizer", algorithm), amsgrad, momentum, *device
        )
        moments = (FIRST, SECOND, SECOND)
        for parameter in self.parameters:
            layout = TensorLayout(struct_size=ctypes.sizeof(TensorLayout))
            check(library().octavo_layout(ctypes.byref(config), parameter.spec(), ctypes.byref(layout)))
            parameter.allocate(layout, moments[: layout.slots])
        args = (TensorArgs * len(self.parameters))(*(p.args(i) for i, p in enumerate(self.parameters)))
        check(
            library().octavo_group_create(
                ctypes.byref(config), ctypes.addressof(args), len(self.parameters), ctypes.byref(self._handle)
            )
        )
        byte_count = library().octavo_group_workspace_bytes(self._handle)
        on_gpu = device[0] != 0 and byte_count > 0
        self._workspace = self.parameters[0].new_buffer(byte_count) if on_gpu else _numpy_zeros(byte_count)
        self._args = StepArgs()
        library().octavo_step_args_init_sized(ctypes.byref(self._args), ctypes.sizeof(StepArgs))
        self._args.workspace = pointer(self._workspace) if byte_count else None
        self._args.workspace_bytes = byte_count

    def step(self, step: int, **fields: float) -> StepReport:
        """One step. Fields of octavo_step_args by name: lr, beta1, weight_decay, threads, guard …"""
        args = StepArgs.from_buffer_copy(self._args)
        args.step = step
        for name, value in fields.items():
            if not hasattr(args, name):
                raise AttributeError(f"octavo_step_args has no field {name}")
            setattr(args, name, value)
        report = StepReport(struct_size=ctypes.sizeof(StepReport))
        check(library().octavo_group_step(self._handle, ctypes.byref(args), ctypes.byref(report)))
        return report

    def close(self) -> None:
        if self._handle:
            library().octavo_group_destroy(self._handle)
            self._handle = ctypes.c_void_p()

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.parameters)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()
