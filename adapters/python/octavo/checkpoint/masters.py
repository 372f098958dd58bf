"""Master bits of bf16 parameters: joined to fp32, split from it, and between widths (docs/formats.md, weight
stores).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._codec import MASTER_DTYPES

if TYPE_CHECKING:
    from .native import Loaded


def join(param: Tensor, residual: Tensor) -> Tensor:
    """The fp32 master of a bf16 parameter and its residual (int8 or int16). A zero with a negative residual,
    which is left from before somebody set the parameter to zero, is zero.
    """
    high = param.detach().contiguous().view(torch.int16).to(torch.int32) << 16
    low = residual.to(torch.int32)
    added = low << 8 if residual.dtype == torch.int8 else low
    magnitude = ((high & 0x7FFFFFFF) + added).clamp_(min=0)
    return (magnitude | (high & -0x80000000)).view(torch.float32)


def residual_of(param: Tensor, master: Tensor, bits: int) -> Tensor:
    """The residual of `bits` (24 or 32) that brings a bf16 parameter closest to an fp32 master."""
    wanted = master.detach().to(torch.float32).contiguous().view(torch.int32).to(torch.int64)
    high = param.detach().contiguous().view(torch.int16).to(torch.int64) << 16
    difference = wanted - (high if high.dim() else high.view(()))
    # int32 bit patterns of negative numbers compare as their magnitudes do.
    difference = (difference + (1 << 31)) % (1 << 32) - (1 << 31)
    if bits == 24:
        return ((difference + 0x80) >> 8).clamp_(-128, 127).to(torch.int8)
    return difference.clamp_(-(1 << 15), (1 << 15) - 1).to(torch.int16)


def residual_for(item: Loaded, param: Tensor) -> Tensor:
    """What a loaded state says of the local parameter's master bits, in the width that is kept here."""
    from .loading import of_local_rows

    bits = 24 if item.kind.master == 24 else 32
    here = param.detach().cpu()
    saved: Tensor | None = None
    if item.residual is not None:
        residual = of_local_rows(item.residual, item).cpu()
        if item.residual_bits == bits:
            return residual
        saved = join(here, residual)
    elif item.saved.error_bits is not None:
        saved = dataclasses.replace(item.saved, error_bits=of_local_rows(item.saved.error_bits, item)).master(
            here
        )
    if saved is None:
        return torch.zeros_like(here, dtype=MASTER_DTYPES[bits])
    return residual_of(here, saved, bits)
