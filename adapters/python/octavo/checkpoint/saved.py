"""What a saved optimizer state says about one parameter, whoever wrote it.

A moment is kept as it was saved, and turned into numbers when asked: a load that goes parameter by
parameter never holds the fp32 values of all states. Where codes, scales and map are those of
docs/formats.md, a moment has a `format` and its bytes may be taken over as they are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .. import _codec, _describe
from .decoding import check_shape
from .flash_masters import master_weights

_PLAIN = {torch.float32: "fp32", torch.bfloat16: "bf16"}
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@functools.cache
def known_moments() -> dict[str, _codec.Moment]:
    """The moments of all algorithms by their names, and the kind of each in docs/formats.md."""
    out: dict[str, _codec.Moment] = {}
    for described in _describe.algorithms().values():
        for name, slot in described.all_slots.items():
            if out.setdefault(name, slot.moment) != slot.moment:
                raise RuntimeError(f"{described.name} calls a {slot.moment} moment {name}, another does not")
    return out


@dataclass(frozen=True)
class SavedMoment:
    """One moment of a parameter of `shape`.

    `codes` and `scales` are as in our own state: uint8 or float8 codes of the parameter's shape, flat packed
    nibbles, or the floats themselves; flat fp32 scales. They are on the checkpoint's device and may be its
    own tensors: copy before writing.
    """

    moment: _codec.Moment
    shape: tuple[int, ...]
    format: str  # the state format of docs/formats.md in which it is saved; "" when it is in none
    block_size: int  # 0 where there are no blocks
    codes: Tensor | None
    scales: Tensor | None
    decoder: Callable[[], Tensor] | None = field(default=None, repr=False)  # where there are no codes

    def values(self) -> Tensor:
        """The numbers: fp32, on the CPU, contiguous, of the parameter's shape. Not to be written to."""
        if self.decoder is not None:
            return self.decoder().view(self.shape)
        if self.codes is None:
            raise RuntimeError("a saved moment has either codes or a decoder")
        codes = self.codes.detach().cpu()
        if codes.dtype in _FLOATS:
            return codes.to(torch.float32).contiguous()
        scales = None if self.scales is None else self.scales.detach().cpu()
        return _codec.decode(self.moment, self.format, codes, scales, self.shape, self.block_size)

    def is_negative(self) -> bool:
        """Whether a second moment has a negative number, which only a corrupt file has."""
        if self.moment == "first" or (self.codes is not None and self.codes.dtype == torch.uint8):
            return False  # of a second moment every code is a number of at least 0
        if self.codes is not None and self.codes.element_size() == 1:  # float8: not every device compares it
            return bool((self.codes.view(torch.uint8) > 0x80).any())  # the sign, but for a zero's
        return bool(((self.codes if self.codes is not None else self.values()) < 0).any())

    def take_over(self, state: str, block_size: int = 0) -> tuple[Tensor, Tensor | None] | None:
        """Codes and scales for a moment kept in format `state`; None where the saved bytes are not those.

        A block size of 0 is the format's default.
        """
        state = _codec.in_blocks(self.moment, state, len(self.shape))
        if self.codes is None or self.format != state:
            return None
        wanted = block_size or _codec.default_block_size(state)
        one_block = math.prod(self.shape) <= min(self.block_size, wanted)  # then its size does not show
        if self.scales is not None and self.block_size != wanted and not one_block:
            return None
        return self.codes, self.scales


@dataclass(frozen=True)
class SavedState:
    """All that is saved of one parameter.

    `error_bits` are flashoptim's master weights (see flash_masters.py). They are *not* the residual bits of
    our own masters: encode what `master()` returns.
    """

    step: int
    moments: dict[str, SavedMoment]  # by our names; those that are saved
    error_bits: Tensor | None = None  # int8 (24-bit masters) or int16 (32-bit), of the parameter's shape
    master_bits: int = 0  # 24 or 32 with error_bits
    ignored: tuple[str, ...] = ()  # keys of the entry that were not read, for a warning

    def master(self, parameter: Tensor) -> Tensor | None:
        """The fp32 masters, on the CPU, of the bf16 or fp16 `parameter` saved with them; None without."""
        return None if self.error_bits is None else master_weights(parameter, self.error_bits)


def plain_moment(name: str, value: Tensor, shape: tuple[int, ...]) -> SavedMoment:
    """A moment saved as a tensor of floats."""
    if value.dtype not in _FLOATS:
        expected = ", ".join(str(dtype).removeprefix("torch.") for dtype in _FLOATS)
        raise ValueError(f"{name} has dtype {value.dtype} and no scales, expected one of {expected}")
    check_shape(name, value, shape)
    return SavedMoment(
        known_moments()[name], shape, _PLAIN.get(value.dtype, ""), 0, value.detach().contiguous(), None
    )
