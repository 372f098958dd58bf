"""The saved optimizer state of one parameter, from any library.

A moment keeps its saved form, and values() decodes it, so a load never holds the fp32 values of all states.
If codes, scales and map are those of docs/formats.md, the moment has a `format` and its bytes can be used
unchanged.
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
from .masters import add_error_bits

_PLAIN = {torch.float32: "fp32", torch.bfloat16: "bf16"}
_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@functools.cache
def known_moments() -> dict[str, _codec.Moment]:
    """Returns the kind of each moment of all algorithms, by its name (docs/formats.md)."""
    out: dict[str, _codec.Moment] = {}
    for described in _describe.algorithms().values():
        for name, slot in described.all_slots.items():
            if out.setdefault(name, slot.moment) != slot.moment:
                raise RuntimeError(f"{described.name} calls a {slot.moment} moment {name}, another does not")
    return out


@dataclass(frozen=True)
class SavedMoment:
    """One moment of a parameter of `shape`.

    `codes` and `scales` are as in optimizer.state: uint8 or float8 codes in the parameter's shape, flat
    packed nibbles, or the values themselves; flat fp32 scales. They are on the checkpoint's device and may be
    its own tensors, so they must not be written.
    """

    moment: _codec.Moment
    shape: tuple[int, ...]
    format: str  # the state format of docs/formats.md; "" for another library's format
    block_size: int  # 0 without blocks
    codes: Tensor | None
    scales: Tensor | None
    decoder: Callable[[], Tensor] | None = field(default=None, repr=False)  # without codes

    def values(self) -> Tensor:
        """Returns the values: fp32, on the CPU, contiguous, in the parameter's shape. They may be shared."""
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
        """Returns whether a second moment has a negative value, which only a corrupt file has."""
        if self.moment == "first" or (self.codes is not None and self.codes.dtype == torch.uint8):
            return False  # every uint8 code of a second moment is a value of at least 0
        if self.codes is not None and self.codes.element_size() == 1:  # some devices cannot compare float8
            return bool((self.codes.view(torch.uint8) > 0x80).any())  # negative, not -0
        return bool(((self.codes if self.codes is not None else self.values()) < 0).any())

    def bytes_in_format(self, state: str, block_size: int = 0) -> tuple[Tensor, Tensor | None] | None:
        """Returns codes and scales in the format `state`; None if the saved bytes have another form. A block
        size of 0 is the format's default.
        """
        state = _codec.in_blocks(self.moment, state, len(self.shape))
        if self.codes is None or self.format != state:
            return None
        wanted = block_size or _codec.default_block_size(state)
        one_block = math.prod(self.shape) <= min(self.block_size, wanted)  # then its size has no effect
        if self.scales is not None and self.block_size != wanted and not one_block:
            return None
        return self.codes, self.scales


@dataclass(frozen=True)
class SavedState:
    """The saved state of one parameter.

    `error_bits` are flashoptim's master weights, which differ from the residuals of docs/formats.md; encode
    the result of `master()` instead (masters.py).
    """

    step: int
    moments: dict[str, SavedMoment]  # by this library's names
    error_bits: Tensor | None = None  # int8 (24-bit masters) or int16 (32-bit)
    master_bits: int = 0  # 24 or 32 with error_bits
    ignored: tuple[str, ...] = ()  # keys of the entry that were not read, for a warning

    def master(
        self, parameter: Tensor, select_rows: Callable[[Tensor], Tensor] = lambda bits: bits
    ) -> Tensor | None:
        """Returns the fp32 masters on the CPU of a bf16 or fp16 parameter; None without error bits."""
        if self.error_bits is None:
            return None
        return add_error_bits(parameter, select_rows(self.error_bits))


def plain_moment(name: str, value: Tensor, shape: tuple[int, ...]) -> SavedMoment:
    """Returns a moment that was saved as a tensor of floats."""
    if value.dtype not in _FLOATS:
        expected = ", ".join(str(dtype).removeprefix("torch.") for dtype in _FLOATS)
        raise ValueError(f"{name} has dtype {value.dtype} and no scales, expected one of {expected}")
    check_shape(name, value, shape)
    return SavedMoment(
        known_moments()[name], shape, _PLAIN.get(value.dtype, ""), 0, value.detach().contiguous(), None
    )
