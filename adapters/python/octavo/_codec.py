"""Moments of one tensor in each state format: their sizes, and conversions to and from fp32, on the CPU.

Codes are flat uint8 tensors here and scales flat fp32 ones, as the core lays them out; `shape` matters to
4bit-rank1 alone. A caller copies a state of another device to the CPU, one tensor at a time.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from . import _abi, _describe
from ._describe import Moment

# Further names in the state of a parameter: the scales of a moment, and the master bits with their widths.
SCALE = "_scale"
MASTER = "master"
# The step count. Where moments are codes it has another name than torch's: torch's optimizers look for "step"
# when they load, and would read the codes as numbers.
STEP = "step"
NATIVE_STEP = "octavo_step"
MASTER_DTYPES: dict[str | int, torch.dtype] = {24: torch.int8, 32: torch.int16}
BLOCK_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)


def check_state(name: object) -> str:
    """Returns `name` if it is a state format, else raises ValueError."""
    if name not in _describe.formats():
        known = ", ".join(repr(state) for state in _describe.formats())
        raise ValueError(f"Invalid state: {name!r}, expected one of {known}")
    return str(name)


def default_block_size(state: str) -> int:
    """Returns 0 for formats without blocks."""
    return _describe.formats()[state].default_block if state in _describe.formats() else 0


def check_block_size(block_size: int) -> int:
    """Returns `block_size` if it is a valid block size, else raises ValueError."""
    if block_size not in BLOCK_SIZES or isinstance(block_size, (bool, float)):
        raise ValueError(
            f"Invalid block_size: {block_size!r}, expected a power of two from {BLOCK_SIZES[0]} to "
            f"{BLOCK_SIZES[-1]}"
        )
    return block_size


def inverse(order: Sequence[int]) -> list[int]:
    """Returns the order of dimensions that undoes a permutation by `order`."""
    return [order.index(d) for d in range(len(order))]


def core_shape(shape: Sequence[int]) -> list[int]:
    """Returns the shape for the core, which has at most eight dimensions; only 4bit-rank1 reads it."""
    dims = [int(n) for n in shape]
    return dims if len(dims) <= _abi.MAX_DIMS else [math.prod(dims)]


def _spec(moment: Moment, state: str, shape: Sequence[int], block_size: int) -> _abi.MomentSpec:
    dims = core_shape(shape)
    spec = _abi.new(_abi.MomentSpec, moment=0 if moment == "first" else 1, format=_abi.parse("state", state))
    spec.ndim, spec.numel, spec.block_size = len(dims), math.prod(dims), block_size
    spec.shape[: len(dims)] = dims
    return spec


@functools.lru_cache(maxsize=4096)
def layout(moment: Moment, state: str, shape: tuple[int, ...], block_size: int = 0) -> tuple[int, int]:
    """Returns the bytes of the codes and the number of scales."""
    codes, scales = _abi.i64(), _abi.i64()
    spec = _spec(moment, state, shape, block_size)
    _abi.check(
        _abi.library().octavo_moment_layout(ctypes.byref(spec), ctypes.byref(codes), ctypes.byref(scales))
    )
    return codes.value, scales.value


def zero_is_zero(moment: Moment, state: str) -> bool:
    """Returns whether code 0 means zero with any scale."""
    return _describe.formats()[state].of(moment).zero_is_zero


def code_dtype(moment: Moment, state: str) -> torch.dtype | None:
    """Returns the element type of the codes; None where they are packed into bytes."""
    return _describe.formats()[state].of(moment).dtype


def code_bits(moment: Moment, state: str) -> int:
    """Returns the number of bits of a code."""
    return _describe.formats()[state].of(moment).bits


def unpacked(codes: Tensor, bits: int, count: int) -> Tensor:
    """Returns packed codes, the first in the highest bits, as a byte each."""
    of_bytes = torch.arange(7, -1, -1, dtype=torch.uint8, device=codes.device)
    of_codes = torch.arange(bits - 1, -1, -1, dtype=torch.uint8, device=codes.device)
    each = ((codes[:, None] >> of_bytes) & 1).view(-1)[: bits * count].view(count, bits)
    return (each << of_codes).sum(dim=1, dtype=torch.uint8)


def packed(codes: Tensor, bits: int) -> Tensor:
    """Packs codes of a byte each; unused bits of the last byte are zero."""
    of_bytes = torch.arange(7, -1, -1, dtype=torch.uint8, device=codes.device)
    of_codes = torch.arange(bits - 1, -1, -1, dtype=torch.uint8, device=codes.device)
    each = ((codes[:, None] >> of_codes) & 1).view(-1)
    each = torch.cat([each, each.new_zeros(-each.numel() % 8, dtype=each.dtype, device=each.device)]).view(
        -1, 8
    )
    return (each << of_bytes).sum(dim=1, dtype=torch.uint8)


def in_blocks(moment: Moment, state: str, ndim: int) -> str:
    """Returns the format in which a moment of `state` is stored: a format with axis scales stores other
    moments, and tensors of fewer than two dimensions, in another format.
    """
    described = _describe.formats()[state]
    return state if described.of(moment).by_axis and ndim >= 2 else described.of_vectors


def encode(moment: Moment, state: str, values: Tensor, block_size: int = 0) -> tuple[Tensor, Tensor]:
    """Converts fp32 values on the CPU to codes and scales."""
    values = values.detach().to(dtype=torch.float32).contiguous()
    code_bytes, scale_count = layout(moment, state, tuple(values.shape), block_size)
    codes = torch.zeros(code_bytes, dtype=torch.uint8, device="cpu")
    scales = torch.zeros(scale_count, dtype=torch.float32, device="cpu")
    spec = _spec(moment, state, values.shape, block_size)
    _abi.check(
        _abi.library().octavo_encode(
            ctypes.byref(spec), values.data_ptr(), codes.data_ptr(), scales.data_ptr()
        )
    )
    return codes, scales


def decode(
    moment: Moment,
    state: str,
    codes: Tensor,
    scales: Tensor | None,
    shape: Sequence[int],
    block_size: int = 0,
) -> Tensor:
    """Converts codes and scales on the CPU to fp32 values of `shape`."""
    code_bytes, scale_count = layout(moment, state, tuple(shape), block_size)
    flat = codes.detach().contiguous().view(-1).view(torch.uint8)
    if scales is None:
        scales = torch.empty(0, dtype=torch.float32, device="cpu")
    floats = scales.detach().to(torch.float32).contiguous().view(-1)
    if flat.numel() != code_bytes or floats.numel() != scale_count:
        raise ValueError(
            f"got {flat.numel()} bytes of {state} codes and {floats.numel()} scales, expected {code_bytes} "
            f"and {scale_count} for shape {tuple(shape)}"
        )
    values = torch.empty(tuple(shape), dtype=torch.float32, device="cpu")
    spec = _spec(moment, state, shape, block_size)
    _abi.check(
        _abi.library().octavo_decode(
            ctypes.byref(spec), flat.data_ptr(), floats.data_ptr(), values.data_ptr()
        )
    )
    return values
