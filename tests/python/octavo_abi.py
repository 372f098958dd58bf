"""The core's engine and codecs over plain arrays, for the Python tests and benchmarks: the package's _abi and
nothing of the package above it.

An array here is a contiguous numpy array or torch tensor; torch itself is not imported. Tensors are on the
CPU, except for those of a group whose parameters are all on one GPU: its state and workspace come from the
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
    AlgorithmInfo,
    EngineArgs,
    EngineDevice,
    EngineTensor,
    MomentSpec,
    OctavoError,
    OptionInfo,
    StepArgs,
    StepReport,
    TensorLayout,
    TensorSpec,
    check,
    i64,
    implementation,
    library,
    library_path,
    new,
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
    """Device kind (0 CPU, 1 CUDA) and index, as the C structs have them."""
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
    spec = new(MomentSpec, moment=moment, format=parse("state", state))
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

    def _fill(self, to: Any) -> Any:
        """Sets the fields that TensorSpec and EngineTensor share."""
        to.param_dtype, to.store = dtype_number(self.param), parse("store", self._store)
        to.format, to.block_size = parse("state", self.state), self.block_size
        to.ndim, to.numel = len(self.shape), numel(self.param)
        to.shape[: to.ndim] = list(self.shape)
        return to

    def allocate(self, algorithm: int, switches: int) -> None:
        layout = new(TensorLayout)
        spec = self._fill(new(TensorSpec))
        check(library().octavo_layout(algorithm, switches, ctypes.byref(spec), ctypes.byref(layout)))
        self.moments = (FIRST, SECOND, SECOND)[: layout.slots]
        self.codes = [self.new_buffer(layout.codes_bytes[i]) for i in range(layout.slots)]
        self.scales = [self.new_buffer(4 * layout.scales[i]) for i in range(layout.slots)]
        self.residual = self.new_buffer(layout.residual_bytes) if layout.residual_bytes else None

    def fill(self, to: EngineTensor, number: int, step: int) -> None:
        """Describes the parameter for the engine; `step` is the address of its step count."""
        self._fill(to)
        to.struct_size, to.id, to.step = ctypes.sizeof(EngineTensor), number, step
        to.param_device_kind, to.param_device_index = device_of(self.param)
        to.state_device_kind, to.state_device_index = device_of(self.param)
        to.param, to.residual = pointer(self.param), pointer(self.residual)
        to.codes[: len(self.codes)] = [pointer(codes) for codes in self.codes]
        to.scales[: len(self.scales)] = [pointer(scales) for scales in self.scales]

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


def switches(number: int, options: dict[str, bool]) -> int:
    """Returns the bits of the options that are on and decide which moments an algorithm has."""
    bits, info, option = 0, new(AlgorithmInfo), new(OptionInfo)
    for index in range(library().octavo_algorithm_count()):
        check(library().octavo_algorithm(index, ctypes.byref(info)))
        for place in range(info.options if info.number == number else 0):
            check(library().octavo_algorithm_option(index, place, ctypes.byref(option)))
            if option.switch_bit >= 0 and options.get(option.name.decode()):
                bits |= 1 << option.switch_bit
    return bits


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
        (self._device,) = devices
        number = parse("optimizer", algorithm)
        self._switches = switches(number, {"amsgrad": amsgrad, "momentum": momentum})
        for parameter in self.parameters:
            parameter.allocate(number, self._switches)
        check(library().octavo_engine_create(number, ctypes.byref(self._handle)))
        count = len(self.parameters)
        self._handles, self._counts = np.arange(count, dtype=np.uint32), np.zeros(count, np.int64)
        self._set_options(self._new_options())
        tensors = (EngineTensor * count)()
        for number, parameter in enumerate(self.parameters):
            parameter.fill(tensors[number], number, self._counts[number:].ctypes.data)
        check(library().octavo_engine_set(self._handle, address(self._handles), tensors, count))
        self._grads = np.array([pointer(p.grad) for p in self.parameters], np.uint64)
        self._dtypes = bytes(dtype_number(p.grad) for p in self.parameters)
        self._begin()
        byte_count = library().octavo_engine_workspace_bytes(self._handle, *self._device)
        on_gpu = self._device[0] != 0 and byte_count > 0
        self._workspace = self.parameters[0].new_buffer(byte_count) if on_gpu else _numpy_zeros(byte_count)

    def step(self, step: int, *, threads: int = 0, stream: int | None = None, **options: float) -> StepReport:
        """One step. `options` are fields of octavo_step_args: lr, beta1, weight_decay …"""
        args = self._new_options()
        for name, value in options.items():
            if not hasattr(args, name):
                raise AttributeError(f"octavo_step_args has no field {name}")
            setattr(args, name, value)
        self._set_options(args)
        self._counts[:] = step - 1
        self._begin()
        device = new(EngineDevice, stream=stream, workspace_bytes=_byte_size(self._workspace))
        device.workspace = pointer(self._workspace) or None
        device.device_kind, device.device_index = self._device
        run = new(EngineArgs, threads=threads, devices=ctypes.addressof(device), device_count=1)
        report = new(StepReport)
        check(library().octavo_engine_step(self._handle, ctypes.byref(run), ctypes.byref(report)))
        return report

    def _new_options(self) -> Any:
        args = new(StepArgs)
        check(library().octavo_step_args_init(ctypes.byref(args)))
        return args

    def _set_options(self, args: Any) -> None:
        check(
            library().octavo_engine_set_group(
                self._handle, 0, self._switches, ctypes.byref(args), *self._device
            )
        )

    def _begin(self) -> None:
        handles, grads = address(self._handles), address(self._grads)
        check(
            library().octavo_engine_begin(
                self._handle, handles, grads, self._dtypes, len(self._dtypes), 0, None
            )
        )

    def close(self) -> None:
        if self._handle:
            library().octavo_engine_destroy(self._handle)
            self._handle = ctypes.c_void_p()

    def __iter__(self) -> Iterator[Parameter]:
        return iter(self.parameters)

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()
