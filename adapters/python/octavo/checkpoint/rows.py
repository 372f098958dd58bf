"""Converts a shard's blocks to a form that splits and joins by rows, so that a checkpoint can be loaded with
another number of ranks.

In memory a shard's blocks start at its first element. A checkpoint has, for every row, the scales of the
blocks that overlap the row, and the position in a block at which the row begins (its phase). If the rows of a
shard have the saved phases, the blocks are restored in bits. Otherwise the shard is decoded and encoded.

The phase is part of a number after the row's scales, the tag, which also has the format and the block size:
they do not follow from shapes, and the parameter group's options may change. The tag is not a separate
tensor, because torch.distributed.checkpoint drops tensors whose names optimizer.state does not have.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .. import _codec, _describe
from .._codec import Moment

_ELEMENTS_AT_ONCE = 1 << 20  # of a shard that is decoded, to bound the memory of its indices
_TAG_BLOCKS = 1 << 13  # above twice the largest block


def phases(count: int, row: int, block: int, device: torch.device) -> Tensor:
    """Returns the phases of `count` rows that are a shard."""
    return torch.arange(count, device=device, dtype=torch.int64) * row % block


def tags(state: str, count: int, row: int, block: int, device: torch.device) -> Tensor:
    """Returns format * 2^13 + block size + phase, which is below 2^24 and therefore exact in fp32."""
    base = _describe.formats()[state].number * _TAG_BLOCKS + block
    return (phases(count, row, block, device) + base).to(torch.float32)


def read_tags(column: Tensor) -> tuple[str, int, Tensor]:
    """Returns format, block size (a power of two above the phase) and phases of tags. Raises ValueError."""
    whole = column.nan_to_num(-1.0).to(torch.int64)
    number, low = divmod(int(whole[0]), _TAG_BLOCKS)
    block = 1 << (low.bit_length() - 1) if low > 0 else 0
    state = next((name for name, each in _describe.formats().items() if each.number == number), "")
    phase = whole - (number * _TAG_BLOCKS + block)
    if (
        block not in _codec.BLOCK_SIZES
        or not _codec.default_block_size(state)
        or bool(((whole != column) | (phase < 0) | (phase >= block)).any())
    ):
        raise ValueError(f"the last column begins with {float(column[0])}, which says nothing of its rows")
    return state, block, phase


def touched(row: int, block: int) -> int:
    """Returns the largest number of blocks that a row of `row` elements overlaps."""
    return row // block if row % block == 0 else (row + block - 2) // block + 1


def scales_to_rows(scales: Tensor, state: str, count: int, row: int, block: int) -> Tensor:
    """Returns for each row the scales of its blocks (and of following blocks, to fill the columns) and its
    tag.
    """
    device, width = scales.device, touched(row, block)
    first = torch.arange(count, device=device, dtype=torch.int64) * row // block
    index = first[:, None] + torch.arange(width, dtype=torch.int64, device=device)
    own = scales[index.clamp_(max=max(scales.numel() - 1, 0))]
    return torch.cat([own, tags(state, count, row, block, device)[:, None]], dim=1)


def rows_to_scales(by_row: Tensor, row: int, block: int) -> Tensor:
    """Reverses scales_to_rows() for rows with the phases of one shard, without their tags."""
    count = by_row.shape[0]
    if row % block == 0 or count == 0:
        return by_row.reshape(-1)
    blocks = torch.arange(-(-count * row // block), device=by_row.device, dtype=torch.int64)
    rows = blocks * block // row
    return by_row[rows, blocks - rows * row // block]


def row_bytes(moment: Moment, state: str, row: int) -> int:
    """Returns the bytes of a row's codes. They are packed if a packed row is a whole number of bytes."""
    bits = _codec.code_bits(moment, state)
    return row * bits // 8 if row * bits % 8 == 0 else row


def codes_to_rows(codes: Tensor, moment: Moment, state: str, shape: tuple[int, ...]) -> Tensor:
    """Returns a shard's codes with rows as dimension 0: bytes of the shard's shape, or packed codes by rows
    (one code in a byte if a packed row is not a whole number of bytes).
    """
    count, row = shape[0], math.prod(shape[1:])
    if _codec.code_dtype(moment, state) is not None:
        return codes.view(torch.uint8) if codes.element_size() == 1 else codes
    bits = _codec.code_bits(moment, state)
    if row * bits % 8 == 0:
        return codes.view(count, row * bits // 8)
    return _codec.unpacked(codes, bits, count * row).view(count, row)


def rows_to_codes(by_row: Tensor, moment: Moment, state: str, shape: tuple[int, ...]) -> Tensor:
    """Reverses codes_to_rows(): returns flat bytes, or floats in the shard's shape."""
    if _codec.code_dtype(moment, state) is not None:
        return by_row if by_row.element_size() > 1 else by_row.contiguous().view(torch.uint8).view(-1)
    flat, bits = by_row.reshape(-1), _codec.code_bits(moment, state)
    return flat if math.prod(shape[1:]) * bits % 8 == 0 else _codec.packed(flat, bits)


def cut(
    codes: Tensor,
    scales: Tensor | None,
    moment: Moment,
    state: str,
    block: int,
    offset: int,
    count: int,
) -> tuple[Tensor, Tensor | None] | None:
    """Returns flat codes and scales of `count` elements of a tensor; None if they begin inside a block."""
    if scales is None:
        return codes.reshape(-1)[offset : offset + count], None
    if offset % block:
        return None
    own = scales[offset // block : -(-(offset + count) // block)]
    if _codec.code_dtype(moment, state) is not None:
        return codes.reshape(-1)[offset : offset + count], own
    bits = _codec.code_bits(moment, state)  # a block is a whole number of bytes
    packed = codes[offset * bits // 8 : -(-(offset + count) * bits // 8)].clone()
    if unused := -count * bits % 8:
        packed[-1] &= 0xFF << unused & 0xFF  # removes the next shard's first element
    return packed, own


def decode_rows(
    moment: Moment,
    state: str,
    by_row: Tensor,
    scales: Tensor,
    phase: Tensor,
    shape: tuple[int, ...],
    block: int,
) -> Tensor:
    """Returns the fp32 values on the CPU of rows with any phases."""
    count, row = shape[0], math.prod(shape[1:])
    codes = rows_to_codes(by_row.cpu(), moment, state, shape)
    # Each code is decoded with scale 1 and multiplied by its row's scale, as the codec multiplies.
    _, blocks = _codec.layout(moment, state, (count * row,), block)
    ones = torch.ones(blocks, dtype=torch.float32, device="cpu")
    values = _codec.decode(moment, state, codes, ones, (count, row), block)
    scales, phase = scales.cpu(), phase.cpu()
    inside = torch.arange(row, dtype=torch.int64, device="cpu")
    rows_at_once = max(1, _ELEMENTS_AT_ONCE // max(row, 1))
    for begin in range(0, count, rows_at_once):
        part = slice(begin, begin + rows_at_once)
        values[part] *= scales[part].gather(1, (phase[part, None] + inside) // block)
    return values.view(shape)
