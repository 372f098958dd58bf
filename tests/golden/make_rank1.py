"""Writes rank1.txt: second moments in 4bit-rank1 by the definition of the paper (arXiv 2309.01507).

For each axis r, mu_r[j] is the largest value in the slice with index j on that axis; an element's scale
is the smallest of its mu_r; its code is the nearest of 1/16, 2/16 ... 1 to value / scale, less one. A tie
goes to the smaller code. Octavo multiplies by the rounded reciprocal instead of dividing, so this does too,
and checks that dividing gives the same codes here. Usage: python tests/golden/make_rank1.py
"""

import pathlib

import numpy as np

MASK = (1 << 64) - 1


class Random:
    """splitmix64, as in tests/support/random.h."""

    def __init__(self, seed):
        self.state = seed

    def bits(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)


def spread_values(count, seed, spread):
    random = Random(seed)
    values = np.zeros(count, np.float32)
    for i in range(count):
        exponent = -(random.bits() % (spread + 1))
        z = random.bits()
        total = sum((z >> shift) & 0xFFFF for shift in (0, 16, 32, 48))
        gaussian = np.float32((total - 131070.0) * (1.7320508075688772 / 65536.0))
        values[i] = np.ldexp(gaussian, exponent)
        if random.bits() % 37 == 0:
            values[i] = 0
    return values


def encode(values):
    maxima = []
    scale = np.full(values.shape, np.inf, np.float32)
    for axis in range(values.ndim):
        others = tuple(a for a in range(values.ndim) if a != axis)
        mu = values.max(axis=others)
        maxima.append(mu)
        scale = np.minimum(scale, mu.reshape([-1 if a == axis else 1 for a in range(values.ndim)]))
    middles = (np.arange(15, dtype=np.float32) * 2 + 3) / 32  # between (k + 1) / 16 and (k + 2) / 16
    codes = (values * (np.float32(1) / scale))[..., None] > middles
    divided = (values / scale)[..., None] > middles
    assert np.array_equal(codes, divided)
    return codes.sum(-1).astype(np.uint8).ravel(), np.concatenate(maxima)


def lines(key, data):
    text = data.hex()
    return [f"{key} ="] + ["  " + text[i : i + 96] for i in range(0, len(text), 96)]


def main():
    out = [
        "# Second moments in 4bit-rank1, by the paper's definition.",
        "# Written by make_rank1.py; see README.md here.",
    ]
    for shape in ((1024, 1, 9), (8, 3, 5, 7)):
        values = np.abs(spread_values(int(np.prod(shape)), 77, 9)).reshape(shape)
        codes, scales = encode(values)
        packed = (codes[0::2] << 4) | codes[1::2]
        key = "shape " + " ".join(map(str, shape))
        out += lines(key + " codes", packed.tobytes())
        out += lines(key + " scales", scales.astype("<f4").tobytes())
    pathlib.Path(__file__).with_name("rank1.txt").write_text("\n".join(out) + "\n")


if __name__ == "__main__":
    main()
