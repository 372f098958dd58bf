"""The code maps, decoded through the C ABI: value for value those of bitsandbytes and torchao.

The expected values come from the recipe of those libraries (midpoints of a float32 linspace from 0.1 to 1,
times a power of ten), computed here in exact rational arithmetic with one explicit rounding where theirs
rounds.
"""

from __future__ import annotations

import zlib
from fractions import Fraction

import numpy as np
import octavo_abi as octavo
import pytest


def f32(x: Fraction | float) -> Fraction:
    """The nearest float32, ties to even; exact for any rational in the normal range."""
    x = Fraction(x)
    if x == 0:
        return x
    exponent = abs(x).numerator.bit_length() - abs(x).denominator.bit_length()
    while abs(x) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(x) < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (exponent - 23)
    return round(x / unit) * unit


def decade(d: int, power: int) -> list[Fraction]:
    """The 2^d magnitudes of a decade: midpoints of 2^d steps from 0.1 to 1, times 10^power."""
    n, tenth = 2**d, f32(0.1)
    slope = f32(1 - tenth) / n
    # A linspace works from both ends with fused operations: one rounding each.
    edges = [f32(slope * i + tenth) if i < (n + 1) // 2 else f32(1 - slope * (n - i)) for i in range(n + 1)]
    scale = f32(Fraction(10) ** power)
    return [f32(scale * f32(f32(edges[j] + edges[j + 1]) / 2)) for j in range(n)]


def signed_map(decades: int) -> list[Fraction]:
    rising = [value for d in range(decades) for value in decade(d, d - decades + 1)]
    return [-value for value in reversed(rising)] + [Fraction(0), *rising, Fraction(1)]


def unsigned_map() -> list[Fraction]:
    return [Fraction(0), *(value for e in range(1, 8) for value in decade(e, e - 7)), Fraction(1)]


MAPS = {
    ("8bit", octavo.FIRST): signed_map(7),
    ("8bit", octavo.SECOND): unsigned_map(),
    ("4bit", octavo.FIRST): signed_map(3),
    ("4bit", octavo.SECOND): [Fraction(code + 1, 16) for code in range(16)],
}
IDS = ["8bit-m", "8bit-v", "4bit-m", "4bit-v"]
EACH_MAP = pytest.mark.parametrize(("state", "moment"), MAPS, ids=IDS)


def pack(codes: np.ndarray, state: str) -> np.ndarray:
    """Codes as bytes; in 4-bit formats the even element has the high nibble."""
    codes = codes.astype(np.uint8)
    return codes if state == "8bit" else (codes[0::2] << 4) | codes[1::2]


def unpack(packed: np.ndarray, state: str) -> np.ndarray:
    return packed if state == "8bit" else np.stack([packed >> 4, packed & 15], axis=1).reshape(-1)


def expected(state: str, moment: int) -> np.ndarray:
    values = MAPS[state, moment]
    floats = np.array([float(value) for value in values]).astype(np.float32)
    assert all(Fraction(float(f)) == value for f, value in zip(floats, values, strict=True))
    return floats


def test_the_recipe_gives_the_published_maps() -> None:
    assert f"{zlib.crc32(expected('8bit', octavo.FIRST).astype('<f4').tobytes()):08x}" == "1b137aeb"
    assert f"{zlib.crc32(expected('8bit', octavo.SECOND).astype('<f4').tobytes()):08x}" == "e871278f"
    positive = [0.0, 0.0055, 0.0325, 0.0775, 0.2125, 0.4375, 0.6625, 0.8875, 1.0]
    published = np.array([-x for x in positive[7:0:-1]] + positive)
    np.testing.assert_allclose(expected("4bit", octavo.FIRST), published, rtol=2**-22)


@EACH_MAP
def test_decode_gives_the_map(state: str, moment: int) -> None:
    count = len(MAPS[state, moment])
    codes = pack(np.arange(count), state)
    decoded = octavo.decode(codes, np.ones(1, np.float32), moment, state, (count,))
    np.testing.assert_array_equal(decoded.view(np.uint32), expected(state, moment).view(np.uint32))


@EACH_MAP
def test_decode_rounds_the_product_with_the_scale_once(state: str, moment: int) -> None:
    count, block = len(MAPS[state, moment]), 32
    scales = np.array([3.1e-7, 0.1, 1.0, 7.7e5, 3.0e-37], np.float32)
    codes = np.resize(np.arange(count), block * scales.size)
    decoded = octavo.decode(pack(codes, state), scales, moment, state, (codes.size,), block)
    by_hand = expected(state, moment)[codes] * np.repeat(scales, block)
    np.testing.assert_array_equal(decoded.view(np.uint32), by_hand.view(np.uint32))


@EACH_MAP
@pytest.mark.parametrize("scale", [1.0, 2.0**-20, 2.0**30])
def test_encode_returns_every_code(state: str, moment: int, scale: float) -> None:
    values = expected(state, moment) * np.float32(scale)
    codes, scales = octavo.encode(values, moment, state)
    np.testing.assert_array_equal(unpack(codes, state), np.arange(values.size))
    assert scales.tolist() == [scale]


@EACH_MAP
def test_encode_picks_the_nearest_value(state: str, moment: int) -> None:
    """Around every midpoint, by exact comparison; a tie goes to the smaller magnitude."""
    grid = MAPS[state, moment]
    points, wanted = [], []
    for code in range(len(grid) - 1):
        middle = (grid[code] + grid[code + 1]) / 2
        near = np.float32(float(middle))
        for point in (np.nextafter(near, np.float32(-9)), near, np.nextafter(near, np.float32(9))):
            to_lower, to_upper = Fraction(float(point)) - grid[code], grid[code + 1] - Fraction(float(point))
            lower = to_lower < to_upper or (to_lower == to_upper and middle > 0)
            chosen = code if lower else code + 1
            if state == "8bit" and moment == octavo.SECOND and chosen == 0:
                chosen = 1  # a positive variance is never stored as zero
            points.append(point)
            wanted.append(chosen)
    block = 32 * ((len(points) + 31) // 32)
    block = 1 << (block - 1).bit_length()
    values = np.ones(block, np.float32)  # the ones make the scale 1
    values[: len(points)] = points
    codes, scales = octavo.encode(values, moment, state, block)
    assert scales.tolist() == [1.0]
    np.testing.assert_array_equal(unpack(codes, state)[: len(points)], wanted)
