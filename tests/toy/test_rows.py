"""Packed codes of any width in checkpoints of sharded parameters: rows, and parts of a complete tensor."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from octavo import _codec
from octavo.checkpoint import rows


def codes_of(count: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(count).integers(0, 64, count, dtype=np.uint8))


@pytest.mark.parametrize("count", [0, 1, 3, 4, 7, 128, 131])
def test_codes_pack_from_the_highest_bit_on(count: int) -> None:
    codes = codes_of(count)
    packed = _codec.packed(codes, 6)
    assert packed.numel() == -(-6 * count // 8)
    values = reference.decoded(packed.numpy(), np.ones(-(-count // 128)), "second", count)
    assert np.array_equal(values, reference.GRIDS["second"][codes.numpy()])
    assert torch.equal(_codec.unpacked(packed, 6, count), codes)


@pytest.mark.parametrize("row", [4, 5, 128])
def test_rows_come_back(row: int) -> None:
    codes = _codec.packed(codes_of(3 * row), 6)
    by_row = rows.codes_to_rows(codes, "first", "6bit", (3, row))
    assert by_row.shape == (3, rows.row_bytes("first", "6bit", row))
    assert torch.equal(rows.rows_to_codes(by_row, "first", "6bit", (3, row)), codes)


@pytest.mark.parametrize("count", [128, 130, 131, 132])
def test_a_cut_ends_with_zeros(count: int) -> None:
    codes = codes_of(512)
    cut = rows.cut(_codec.packed(codes, 6), torch.ones(4), "first", "6bit", 128, 128, count)
    assert cut is not None
    assert cut[1] is not None
    assert torch.equal(cut[0], _codec.packed(codes[128 : 128 + count], 6))
    assert cut[1].numel() == -(-count // 128)
