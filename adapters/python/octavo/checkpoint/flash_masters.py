"""flashoptim's master weights: a narrow parameter and error bits, put together to fp32.

An error is a fraction of half the gap between the parameter and its neighbour, in 127ths (int8, 24-bit
masters) or 32767ths (int16, 32-bit masters). It differs from the residual of docs/formats.md, which is the
low bits of the fp32 number. A master is converted between the two as an fp32 number.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .._shards import local
from .decoding import check_shape

# Of the parameter's type: bits of the mantissa, bias of the exponent.
NARROW = {torch.bfloat16: (7, 127), torch.float16: (10, 15)}


def master_weights(parameter: Tensor, error_bits: Tensor) -> Tensor:
    """The masters in fp32, on the CPU, of the parameter's shape."""
    parameter = local(parameter).detach().cpu().contiguous()
    if parameter.dtype not in NARROW:
        raise ValueError(f"the parameter is {parameter.dtype}, but the saved masters are of a 16-bit one")
    check_shape("error_bits", error_bits, tuple(parameter.shape))
    mantissa, bias = NARROW[parameter.dtype]
    magnitude = parameter.view(torch.int16).int() & 0x7FFF
    # Subnormals lie as far apart as the least normal numbers.
    half_gap = (magnitude >> mantissa).clamp_(min=1) - bias - mantissa - 1
    largest = 127 if error_bits.dtype == torch.int8 else 32767
    error = error_bits.cpu().float() / largest
    # 2^half_gap may be below the normal fp32 numbers, so in two factors.
    low = half_gap >> 1
    error = error * _power_of_two(low) * _power_of_two(half_gap - low)
    return parameter.float() + error


def _power_of_two(exponent: Tensor) -> Tensor:
    return ((exponent + 127) << 23).view(torch.float32)
