"""Master weights of 16-bit parameters as fp32: master bits (docs/formats.md, weight stores) are joined, split
and converted between widths, and flashoptim's error bits are read.

The residual of docs/formats.md is the low bits of the fp32 number. flashoptim's error is a fraction of half
the gap between the parameter and its neighbour, in 127ths (int8, 24-bit masters) or 32767ths (int16, 32-bit
masters). A master is converted between the two as an fp32 number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._codec import MASTER_DTYPES
from .._shards import local
from .decoding import check_shape

if TYPE_CHECKING:
    from .native import Loaded

# Bits of the mantissa and bias of the exponent of a parameter's dtype.
NARROW = {torch.bfloat16: (7, 127), torch.float16: (10, 15)}


def join(param: Tensor, residual: Tensor) -> Tensor:
    """Returns the fp32 master of a bf16 parameter and its residual (int8 or int16). If the parameter was set
    to zero after its last step, the residual may be negative; the master is then zero.
    """
    high = param.detach().contiguous().view(torch.int16).to(torch.int32) << 16
    low = residual.to(torch.int32)
    added = low << 8 if residual.dtype == torch.int8 else low
    magnitude = ((high & 0x7FFFFFFF) + added).clamp_(min=0)
    return (magnitude | (high & -0x80000000)).view(torch.float32)


def residual_of(param: Tensor, master: Tensor, bits: int) -> Tensor:
    """Returns the residual of `bits` (24 or 32) that brings a bf16 parameter closest to an fp32 master."""
    wanted = master.detach().to(torch.float32).contiguous().view(torch.int32).to(torch.int64)
    high = param.detach().contiguous().view(torch.int16).to(torch.int64) << 16
    difference = wanted - (high if high.dim() else high.view(()))
    # int32 bit patterns of negative numbers compare as their magnitudes do.
    difference = (difference + (1 << 31)) % (1 << 32) - (1 << 31)
    if bits == 24:
        return ((difference + 0x80) >> 8).clamp_(-128, 127).to(torch.int8)
    return difference.clamp_(-(1 << 15), (1 << 15) - 1).to(torch.int16)


def add_error_bits(parameter: Tensor, error_bits: Tensor) -> Tensor:
    """Returns flashoptim's masters in fp32 on the CPU, in the parameter's shape."""
    parameter = local(parameter).detach().cpu().contiguous()
    if parameter.dtype not in NARROW:
        raise ValueError(f"the parameter is {parameter.dtype}, but the saved masters are of a 16-bit one")
    check_shape("error_bits", error_bits, tuple(parameter.shape))
    mantissa, bias = NARROW[parameter.dtype]
    magnitude = parameter.view(torch.int16).int() & 0x7FFF
    # The gap between subnormal numbers is that of the smallest normal numbers.
    half_gap = (magnitude >> mantissa).clamp_(min=1) - bias - mantissa - 1
    error = error_bits.cpu().float() / (127 if error_bits.dtype == torch.int8 else 32767)
    # 2^half_gap may be below the normal fp32 numbers, so it is multiplied in two factors.
    low = half_gap >> 1
    for exponent in (low, half_gap - low):
        error = error * ((exponent + 127) << 23).view(torch.float32)
    return parameter.float() + error


def residual_for(item: Loaded, param: Tensor) -> Tensor:
    """Returns the master bits of the local parameter from a loaded state, in this optimizer's width."""
    bits = 24 if item.kind.master == 24 else 32
    here = param.detach().cpu()
    if item.residual is not None:
        residual = item.local_rows(item.residual).cpu()
        if residual.dtype == MASTER_DTYPES[bits]:
            return residual
        master: Tensor | None = join(here, residual)
    else:
        master = item.saved.master(here, item.local_rows)
    if master is None:
        return torch.zeros_like(here, dtype=MASTER_DTYPES[bits])
    return residual_of(here, master, bits)
