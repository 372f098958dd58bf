"""flashoptim's states: `NAME::quantized` with `NAME::scales`, and `error_bits` for master weights.

Groups of 32 elements share an fp16 scale s. First moments are int8, 127 * 2x/(1 + |x|) for x = m/s; second
moments are uint8, 255 x for x = sqrt(v)/s. This library has no such format, so they are decoded. For bf16
parameters the scales are saved as fp16 bits with the dtype bf16, because torch's load would cast them. Error
bits are saved likewise: int16 bits as bf16 for 32-bit masters, but int8 *values* in bf16 for 24-bit masters.
The saved group's `master_bytewidth` distinguishes the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._shards import local
from .decoding import check_shape, decode_blocks
from .masters import NARROW
from .saved import SavedMoment, known_moments

_GROUP = 32


def quantized_key(name: str) -> str:
    return f"{name}::quantized"


def scales_key(name: str) -> str:
    return f"{name}::scales"


def flashoptim_moment(name: str, entry: Mapping[str, Any], shape: tuple[int, ...]) -> SavedMoment:
    moment, key = known_moments()[name], quantized_key(name)
    codes, scales = entry[key], entry.get(scales_key(name))
    if not isinstance(codes, Tensor) or not isinstance(scales, Tensor):
        raise ValueError(f"{key} or {scales_key(name)} is not a tensor")
    codes, scales = local(codes).detach(), local(scales).detach().view(-1)
    check_shape(key, codes, shape)
    expected = torch.int8 if moment == "first" else torch.uint8
    if codes.dtype != expected or not codes.is_contiguous():
        raise ValueError(
            f"{key} has dtype {codes.dtype} and strides {codes.stride()}, expected {expected}, contiguous"
        )
    if scales.dtype == torch.bfloat16:
        scales = scales.view(torch.float16)
    elif scales.dtype not in (torch.float16, torch.float32):
        raise ValueError(f"{scales_key(name)} has dtype {scales.dtype}, expected torch.float16")
    groups = (math.prod(shape) + _GROUP - 1) // _GROUP
    if scales.numel() != groups:
        raise ValueError(
            f"{scales_key(name)} has {scales.numel()} entries, expected {groups} for shape {shape}"
        )

    def decode() -> Tensor:
        if moment == "first":
            return decode_blocks(codes.view(-1), scales, _GROUP, _softsign_inverse)
        return decode_blocks(codes.view(-1), scales, _GROUP, lambda part: part.float() / 255).square_()

    return SavedMoment(moment, shape, "", _GROUP, None, None, decode)


def _softsign_inverse(codes: Tensor) -> Tensor:
    y = codes.float() / 127
    return y / (2 - y.abs())


def flashoptim_error_bits(
    entry: Mapping[str, Any], shape: tuple[int, ...], saved_group: Mapping[str, Any]
) -> tuple[Tensor | None, int]:
    """Returns the error bits as int8 or int16, and the masters' bits (24 or 32); None and 0 without."""
    saved = entry.get("error_bits")
    if saved is None:
        return None, 0
    if not isinstance(saved, Tensor):
        raise ValueError(f"error_bits is a {type(saved).__name__}, expected a tensor")
    bits = local(saved).detach().contiguous()
    check_shape("error_bits", bits, shape)
    if bits.dtype in (torch.int8, torch.int16):
        return bits, 24 if bits.dtype == torch.int8 else 32
    width = saved_group.get("master_bytewidth")
    if bits.dtype not in NARROW or width not in (3, 4):
        raise ValueError(
            f"error_bits has dtype {bits.dtype} and the group's master_bytewidth is {width}, expected "
            "torch.bfloat16 or torch.float16, and 3 or 4"
        )
    if width == 4:
        return bits.view(torch.int16), 32
    values = bits.to(torch.int8)
    if not torch.equal(values.to(bits.dtype), bits):
        raise ValueError("error_bits of 24-bit masters are not all whole numbers from -128 to 127")
    return values, 24
