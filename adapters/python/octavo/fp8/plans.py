"""One shape of a product with its structs of the C ABI, made once: a call fills in the addresses alone."""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import NamedTuple

import torch
from torch import Tensor

from .. import _abi
from .._engine import DTYPES, device_numbers, stream_of_gpu
from .devices import workspace
from .recipe import Numbers

FORWARD, DGRAD, WGRAD = 1, 2, 4  # passes, added up
X, W, DY = range(3)
_ALIGNED = 256
# The addresses of a call lie side by side in its struct: one write fills them in.
_CAST = struct.Struct("@7Q"), getattr(_abi.Fp8CastArgs, "from").offset  # to `stream`
_PRODUCT = struct.Struct("@5Q"), _abi.Fp8ProductArgs.a.offset  # to `stream`


class Shape(NamedTuple):
    """octavo::fp8::Layer: y = x . w^T, or several side by side."""

    groups: int
    tokens: int
    inputs: int
    outputs: int
    one_input: bool
    one_output: bool
    turned_weight: bool  # in memory [groups, inputs, outputs]


class Kinds(NamedTuple):
    """Types and place of a product's tensors."""

    device: torch.device
    x: torch.dtype
    w: torch.dtype
    y: torch.dtype  # dy's, too


def layer_of(device: torch.device, numbers: Numbers, shape: Shape, passes: int) -> ctypes.Structure:
    kind, index = device_numbers(device)
    layer = _abi.new(_abi.Fp8Layer, device_kind=kind, device_index=index, passes=passes, **shape._asdict())
    layer.format, layer.recipe = numbers.format, numbers.recipe
    return layer  # type: ignore[no-any-return]


def why_not(device: torch.device, numbers: Numbers, shape: Shape) -> str:
    """Why no pass of this shape can be in FP8; empty: it can."""
    why = _abi.library().octavo_fp8_why_not(ctypes.byref(layer_of(device, numbers, shape, 0)))
    if why is None:
        raise _abi.OctavoError(_abi.last_error())
    return str(why.decode())


class Plan:
    """REQUIRES: why_not() is empty."""

    def __init__(self, kinds: Kinds, numbers: Numbers, shape: Shape, passes: int) -> None:
        library = _abi.library()
        self.kinds, self.numbers, self.shape, self.passes = kinds, numbers, shape, passes
        self.device = kinds.device
        self._lock = threading.Lock()  # of the structs: calls release the interpreter's
        # Plans with the same one take the same codes of a weight.
        self.weight_key = (kinds.w, numbers, shape._replace(tokens=0))
        self._struct = layer_of(kinds.device, numbers, shape, passes)
        self._layer = ctypes.byref(self._struct)
        self._cast, self._product = library.octavo_fp8_cast, library.octavo_fp8_product
        threads = torch.get_num_threads() if kinds.device.type == "cpu" else 0
        dtypes = (DTYPES[kinds.x], DTYPES[kinds.w], DTYPES[kinds.y])
        self._casts = [
            _abi.new(_abi.Fp8CastArgs, operand=i, dtype=dtypes[i], threads=threads) for i in range(3)
        ]
        results = (kinds.y, kinds.x, kinds.w)
        self._products = [
            _abi.new(_abi.Fp8ProductArgs, **{"pass": i}, dtype=DTYPES[results[i]], threads=threads)
            for i in range(3)
        ]
        self._cast_refs = [ctypes.byref(each) for each in self._casts]
        self._product_refs = [ctypes.byref(each) for each in self._products]
        # Bytes of codes by operand: by rows, turned.
        self.bytes = [
            tuple(self._checked(library.octavo_fp8_codes_bytes(self._layer, i, turned)) for turned in (0, 1))
            for i in range(3)
        ]
        self.cast_workspace_bytes = self._checked(library.octavo_fp8_cast_workspace_bytes(self._layer))
        self.sizes = [self._result(i) for i in range(3)]
        self.result_dtypes = results
        self._gpu = kinds.device.index if kinds.device.type == "cuda" else None
        self.pads = self.sizes[0][1] != shape.tokens
        self.state_bytes = 4 * (2 + numbers.length) if numbers.length else 0  # of one tensor

    @staticmethod
    def _checked(size: int) -> int:
        if size < 0:
            raise _abi.OctavoError(_abi.last_error())
        return size

    def _result(self, number: int) -> tuple[int, int, int]:
        sizes = (ctypes.c_int64 * 3)()
        _abi.check(_abi.library().octavo_fp8_result(self._layer, number, sizes))
        return tuple(sizes)

    def empty_codes(self, operand: int) -> tuple[Tensor | None, Tensor | None]:
        rows, turned = self.bytes[operand]
        return (
            torch.empty(rows, dtype=torch.uint8, device=self.device) if rows else None,
            torch.empty(turned, dtype=torch.uint8, device=self.device) if turned else None,
        )

    def empty_sums(self) -> Tensor:
        return torch.empty(self.shape.outputs, dtype=torch.float32, device=self.device)

    def stream(self) -> int | None:
        return None if self._gpu is None else stream_of_gpu(self._gpu)

    def empty_pair(self, operand: int) -> tuple[Tensor, int, int]:
        """Memory for both kinds of codes at once, and where they begin; 0: not wanted."""
        rows, turned = self.bytes[operand]
        first = -(-rows // _ALIGNED) * _ALIGNED
        memory = torch.empty(first + turned, dtype=torch.uint8, device=self.device)
        begin = memory.data_ptr()
        return memory, begin if rows else 0, begin + first if turned else 0

    def cast(
        self,
        operand: int,
        source: Tensor,
        codes: Tensor | None,
        turned: Tensor | None,
        state: int,
        gather: bool = True,
    ) -> None:
        """`state` is the address of the site's states, of x first; with `gather` its slot is raised."""
        self.cast_to(
            operand,
            source,
            0 if codes is None else codes.data_ptr(),
            0 if turned is None else turned.data_ptr(),
            state,
            gather,
            None,
            self.stream(),
        )

    def cast_to(
        self,
        operand: int,
        source: Tensor,
        codes: int,
        turned: int,
        state: int,
        gather: bool,
        bias_grad: Tensor | None,
        stream: int | None,
    ) -> None:
        """cast() to addresses."""
        scales = history = 0
        if self.state_bytes:
            scales = state + operand * self.state_bytes
            history = scales + 8 if gather else 0
        sums = 0 if bias_grad is None else bias_grad.data_ptr()
        space = None
        if bias_grad is not None and self.cast_workspace_bytes:
            # Torch's allocator gives the memory to later work of this stream alone, so it may be freed here.
            space = torch.empty(self.cast_workspace_bytes, dtype=torch.uint8, device=self.device)
        with self._lock:
            if space is not None:
                self._casts[operand].workspace = space.data_ptr()
                self._casts[operand].workspace_bytes = self.cast_workspace_bytes
            _CAST[0].pack_into(
                self._casts[operand],
                _CAST[1],
                source.data_ptr(),
                codes,
                turned,
                scales,
                history,
                sums,
                stream or 0,
            )
            status = self._cast(self._layer, self._cast_refs[operand])
        if status != 0:
            raise _abi.OctavoError(_abi.last_error())

    def product(self, number: int, a: Tensor, b: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The pass's result in `shape`. Where its memory has more rows than are meant, those come last."""
        return self.product_of(number, a.data_ptr(), b.data_ptr(), shape, self.stream())

    def product_of(self, number: int, a: int, b: int, shape: tuple[int, ...], stream: int | None) -> Tensor:
        """product() of addresses."""
        padded = self.sizes[number] if self.pads and number < 2 else shape
        to = torch.empty(padded, dtype=self.result_dtypes[number], device=self.device)
        space = 0
        if (room := workspace(self.device, stream)) is not None:
            space = room.data_ptr()
        with self._lock:
            _PRODUCT[0].pack_into(
                self._products[number], _PRODUCT[1], a, b, to.data_ptr(), space, stream or 0
            )
            status = self._product(self._layer, self._product_refs[number])
        if status != 0:
            raise _abi.OctavoError(_abi.last_error())
        if padded is shape:
            return to
        # Not a view: what autograd gets from a function of its own must not be one, to be written in place.
        visible = torch.empty(0, dtype=self.result_dtypes[number], device=self.device)
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        return visible.set_(to.untyped_storage(), 0, tuple(shape), tuple(strides))


_plans: dict[tuple[Kinds, Numbers, Shape, int], Plan] = {}


def plan(kinds: Kinds, numbers: Numbers, shape: Shape, passes: int) -> Plan:
    key = (kinds, numbers, shape, passes)
    found = _plans.get(key)
    if found is None:
        if len(_plans) > 4096:  # lengths that never come again
            _plans.clear()
        found = _plans[key] = Plan(kinds, numbers, shape, passes)
    return found
