"""Layers that are prepared once per shape: a call fills in the addresses only."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _abi
from .._engine import DTYPES, device_numbers, stream_of_gpu
from .devices import workspace
from .recipe import Numbers

FORWARD, DGRAD, WGRAD = 1, 2, 4  # passes, added up
X, W, DY = range(3)
_ALIGNED = 256
_ARGS = struct.Struct("@2I17Pq")  # of octavo_fp8_run_args

Addresses = tuple[int, int, int]  # by operand or by pass; 0: none
NONE: Addresses = (0, 0, 0)


def only(number: int, address: int) -> Addresses:
    """One operand's or pass's address, and no others."""
    return (*NONE[:number], address, *NONE[number + 1 :])  # type: ignore[return-value]


class Shape(NamedTuple):
    """The shape of a layer y = x . w^T, or of several groups of it."""

    groups: int
    tokens: int
    inputs: int
    outputs: int
    one_input: bool
    one_output: bool
    transposed_weight: bool  # in memory [groups, inputs, outputs]


class Kinds(NamedTuple):
    """The dtypes and the device of a layer's tensors."""

    device: torch.device
    x: torch.dtype
    w: torch.dtype
    y: torch.dtype  # dy's, too


def _struct_of(kinds: Kinds, numbers: Numbers, shape: Shape, passes: int) -> Any:
    kind, index = device_numbers(kinds.device)
    layer = _abi.new(_abi.Fp8Layer, device_kind=kind, device_index=index, passes=passes, **shape._asdict())
    layer.format, layer.recipe, layer.history = numbers.format, numbers.recipe, numbers.length
    layer.dtypes[:] = [DTYPES[dtype] for dtype in kinds[1:]]
    layer.threads = torch.get_num_threads() if kinds.device.type == "cpu" else 0
    return layer


def why_not(kinds: Kinds, numbers: Numbers, shape: Shape) -> str:
    """Returns why no pass of this shape can be in FP8; empty: they can."""
    why = _abi.library().octavo_fp8_why_not(_struct_of(kinds, numbers, shape, 0))
    if why is None:
        raise _abi.OctavoError(_abi.last_error())
    return str(why.decode())


class Layer:
    """REQUIRES: why_not() is empty."""

    def __init__(self, kinds: Kinds, numbers: Numbers, shape: Shape, passes: int) -> None:
        self.kinds, self.numbers, self.shape, self.passes = kinds, numbers, shape, passes
        self.device = kinds.device
        # Plans with the same key use the same codes of a weight.
        self.weight_key = (kinds.w, numbers, shape._replace(tokens=0))
        self._layer = _struct_of(kinds, numbers, shape, passes)
        self._run = _abi.library().octavo_fp8_run
        sizes = _abi.new(_abi.Fp8Sizes)
        _abi.check(_abi.library().octavo_fp8_layer_sizes(self._layer, sizes))
        # Bytes of codes by operand: by rows, transposed.
        self.bytes = list(zip(sizes.codes, sizes.transposed, strict=True))
        self.cast_workspace_bytes, self._workspace_bytes = sizes.cast_workspace, sizes.workspace
        self.sizes = [tuple(sizes.y), tuple(sizes.dx), tuple(sizes.dw)]
        self.result_dtypes = (kinds.y, kinds.x, kinds.w)
        self._gpu = kinds.device.index if kinds.device.type == "cuda" else None
        self.pads = self.sizes[0][1] != shape.tokens

    def empty_codes(self, operand: int) -> tuple[Tensor | None, Tensor | None]:
        rows, transposed = self.bytes[operand]
        return (
            torch.empty(rows, dtype=torch.uint8, device=self.device) if rows else None,
            torch.empty(transposed, dtype=torch.uint8, device=self.device) if transposed else None,
        )

    def empty_pair(self, operand: int) -> tuple[Tensor, int, int]:
        """One buffer for both orientations of codes, and their addresses; 0: not needed."""
        rows, transposed = self.bytes[operand]
        first = -(-rows // _ALIGNED) * _ALIGNED
        memory = torch.empty(first + transposed, dtype=torch.uint8, device=self.device)
        begin = memory.data_ptr()
        return memory, begin if rows else 0, begin + first if transposed else 0

    def empty_sums(self) -> Tensor:
        return torch.empty(self.shape.outputs, dtype=torch.float32, device=self.device)

    def empty_result(self, number: int, shape: tuple[int, ...]) -> Tensor:
        """Memory for a pass's result, seen as `shape`. Rows that are padding come last in its memory."""
        dtype = self.result_dtypes[number]
        if not self.pads or number == 2:
            return torch.empty(shape, dtype=dtype, device=self.device)
        # Not a view: autograd does not allow a view that a function returns to be written in place.
        memory = torch.empty(self.sizes[number], dtype=dtype, device=self.device).untyped_storage()
        strides = [1]
        for size in reversed(shape[1:]):
            strides.insert(0, strides[0] * size)
        return torch.empty(0, dtype=dtype, device=self.device).set_(memory, 0, tuple(shape), tuple(strides))

    def stream(self) -> int | None:
        return None if self._gpu is None else stream_of_gpu(self._gpu)

    def run(
        self,
        sources: Addresses,
        codes: Addresses,
        transposed: Addresses,
        results: Addresses,
        state: int,
        gather: bool,
        stream: int | None,
        bias_grad: Tensor | None = None,
    ) -> None:
        """Casts `sources`, then computes `results`; see octavo_fp8_run. `state` is the address of the site's
        states, whose maxima are raised with `gather`.
        """
        scratch = workspace(self.device, stream, self._workspace_bytes) if any(results) else None
        sums = memory = size = 0
        if bias_grad is not None:
            sums = bias_grad.data_ptr()
            if size := self.cast_workspace_bytes:
                # Torch's allocator reuses the memory on this stream only, so it may be freed after the call.
                space = torch.empty(size, dtype=torch.uint8, device=self.device)
                memory = space.data_ptr()
        args = _ARGS.pack(
            _ARGS.size,
            gather,
            *sources,
            *codes,
            *transposed,
            *results,
            state,
            sums,
            0 if scratch is None else scratch.data_ptr(),
            stream or 0,
            memory,
            size,
        )
        if self._run(self._layer, _abi.Fp8RunArgs.from_buffer_copy(args)) != 0:
            raise _abi.OctavoError(_abi.last_error())

    def cast(
        self,
        operand: int,
        source: Tensor,
        codes: int,
        transposed: int,
        state: int,
        gather: bool = True,
        stream: int | None = None,
    ) -> None:
        """run() of one cast."""
        self.run(
            only(operand, source.data_ptr()),
            only(operand, codes),
            only(operand, transposed),
            NONE,
            state,
            gather,
            stream,
        )

    def matmul(self, number: int, codes: Addresses, transposed: Addresses, stream: int | None) -> Tensor:
        """run() of one matmul; returns its result with the rows that are padding."""
        to = torch.empty(self.sizes[number], dtype=self.result_dtypes[number], device=self.device)
        self.run(NONE, codes, transposed, only(number, to.data_ptr()), 0, False, stream)
        return to


_layers: dict[tuple[Kinds, Numbers, Shape, int], Layer] = {}


def cached_layer(kinds: Kinds, numbers: Numbers, shape: Shape, passes: int) -> Layer:
    key = (kinds, numbers, shape, passes)
    found = _layers.get(key)
    if found is None:
        if len(_layers) > 4096:  # sequence lengths that do not repeat
            _layers.clear()
        found = _layers[key] = Layer(kinds, numbers, shape, passes)
    return found
