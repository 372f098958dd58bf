"""Helpers of the importers: they check shapes, compare maps in bits and decode codes block by block."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from .. import _codec

_CHUNK = 1 << 20  # elements that decode_blocks() decodes at a time, to bound its temporaries


def check_shape(name: str, value: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(value.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(value.shape)}, but the parameter has shape {shape}")


@functools.cache
def our_map(moment: _codec.Moment, state: str) -> Tensor:
    """Returns the library's values of the codes of "8bit" or "4bit", in order."""
    count = 256 if state == "8bit" else 16
    codes = torch.arange(count, dtype=torch.uint8, device="cpu")
    if state == "4bit":
        codes = (codes[::2] << 4) | codes[1::2]
    one = torch.ones(1, dtype=torch.float32, device="cpu")
    return _codec.decode(moment, state, codes, one, (count,), 256)


def is_our_map(qmap: Tensor, moment: _codec.Moment, state: str) -> bool:
    """Returns whether a stored map equals the library's in bits."""
    ours = our_map(moment, state)
    stored = qmap.detach().cpu().contiguous().view(-1)
    return stored.dtype == ours.dtype and torch.equal(stored.view(torch.int32), ours.view(torch.int32))


def is_our_block(block_size: int) -> bool:
    try:
        _codec.check_block_size(block_size)
    except ValueError:
        return False
    return True


def decode_blocks(
    codes: Tensor, scales: Tensor, block_size: int, value_of: Callable[[Tensor], Tensor]
) -> Tensor:
    """Returns fl(value_of(code) * scale) of flat codes on the CPU, as torchao and bitsandbytes compute it."""
    codes, scales = codes.detach().cpu(), scales.detach().cpu().to(torch.float32)
    out = torch.empty(codes.numel(), dtype=torch.float32, device="cpu")
    chunk = max(_CHUNK // block_size, 1) * block_size
    for start in range(0, codes.numel(), chunk):
        part = value_of(codes[start : start + chunk])
        first = start // block_size
        spread = scales[first : first + chunk // block_size].repeat_interleave(block_size)
        torch.mul(part, spread[: part.numel()], out=out[start : start + part.numel()])
    return out


def map_decoder(
    codes: Tensor, scales: Tensor, block_size: int, qmap: Tensor, *, nibbles: bool = False
) -> Callable[[], Tensor]:
    """Returns a decoder of codes of another map. With `nibbles`, a byte has two codes, the first in the high
    nibble.
    """

    def decode() -> Tensor:
        table = qmap.detach().cpu().to(torch.float32).view(-1)
        flat = torch.stack([codes >> 4, codes & 15], dim=-1).view(-1) if nibbles else codes.view(-1)
        return decode_blocks(flat, scales, block_size, lambda part: table[part.int()])

    return decode
