"""The library's descriptions of the algorithms (options with defaults and ranges, moments, the meaning of
weight decay) and of the state formats. Nothing here names one of them; classes, checks and states are made
from them.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

import torch

from . import _abi

Moment = Literal["first", "second"]
MOMENTS: tuple[Moment, Moment] = ("first", "second")  # by their numbers
ANY, NON_NEGATIVE, POSITIVE, FRACTION, FLAG = range(5)  # octavo_option_info.range


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    name: str
    tuple: str  # the tuple option of torch that contains it: "betas"; "" if none
    place: int  # its index in the tuple
    default: float
    range: int
    offset: int  # its byte in octavo_step_args: a double, a uint32 for a flag; -1: it only switches
    switch_bit: int  # -1: it does not change which moments exist
    optional: bool  # may be None, which is 0

    def of(self, group: Mapping[str, Any]) -> Any:
        """Returns its value in a parameter group; None if the group has none."""
        if not self.tuple:
            return group.get(self.name)
        values = group.get(self.tuple)
        return None if values is None or len(values) <= self.place else values[self.place]


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    name: str  # torch's
    peer: str  # bitsandbytes'
    moment: Moment


@dataclasses.dataclass(frozen=True, eq=False)
class Algorithm:
    index: int  # in the library's list
    number: int
    name: str
    title: str
    family: int
    decoupled: bool  # weight decay is applied to the parameter, not added to the gradient
    options: tuple[Option, ...]  # in the order of torch's arguments, or bitsandbytes'
    update_is_rate: bool  # an update is about as large as the learning rate
    first_step_fills: bool  # a new moment must begin at step 1
    excluded_formats: int  # bit i: the state format of number i is not supported

    def switches(self, group: Mapping[str, Any]) -> int:
        """Returns the bits of the options that are on and decide which moments exist."""
        return sum(1 << o.switch_bit for o in self.options if o.switch_bit >= 0 and bool(o.of(group)))

    @functools.cached_property
    def all_slots(self) -> dict[str, Slot]:
        """Returns every moment that the algorithm may keep, by its name."""
        bits = sum(o.switch_bit >= 0 for o in self.options)
        found = (slot for switches in range(1 << bits) for slot in self.slots(switches))
        return {slot.name: slot for slot in found}

    def slots(self, switches: int) -> tuple[Slot, ...]:
        """Returns the moments with these switches; none for an unsupported combination."""
        return _slots(self.index, switches)


def _text(value: bytes) -> str:
    return value.decode()


@functools.cache
def _slots(index: int, switches: int) -> tuple[Slot, ...]:
    library, out = _abi.library(), []
    for place in range(library.octavo_algorithm_slots(index, switches)):
        info = _abi.new(_abi.SlotInfo)
        _abi.check(library.octavo_algorithm_slot(index, switches, place, ctypes.byref(info)))
        out.append(Slot(_text(info.name), _text(info.peer), MOMENTS[info.moment]))
    return tuple(out)


def _option(index: int, number: int, seen: dict[str, int]) -> Option:
    info = _abi.new(_abi.OptionInfo)
    _abi.check(_abi.library().octavo_algorithm_option(index, number, ctypes.byref(info)))
    part_of = _text(info.tuple)
    place = seen.setdefault(part_of, 0)
    seen[part_of] += 1
    return Option(
        name=_text(info.name),
        tuple=part_of,
        place=place if part_of else 0,
        default=info.value,
        range=info.range,
        offset=info.offset,
        switch_bit=info.switch_bit,
        optional=bool(info.optional),
    )


def _algorithm(index: int) -> Algorithm:
    info = _abi.new(_abi.AlgorithmInfo)
    _abi.check(_abi.library().octavo_algorithm(index, ctypes.byref(info)))
    seen: dict[str, int] = {}
    return Algorithm(
        index=index,
        number=info.number,
        name=_text(info.name),
        title=_text(info.title),
        family=info.family,
        decoupled=info.decay == 2,
        options=tuple(_option(index, number, seen) for number in range(info.options)),
        update_is_rate=bool(info.update_is_rate),
        first_step_fills=bool(info.first_step_fills),
        excluded_formats=info.excluded_formats,
    )


@functools.cache
def algorithms() -> dict[str, Algorithm]:
    """Returns all algorithms of the library, by name."""
    found = map(_algorithm, range(_abi.library().octavo_algorithm_count()))
    return {algorithm.name: algorithm for algorithm in found}


@dataclasses.dataclass(frozen=True, slots=True)
class MomentFormat:
    """How a state format stores one moment."""

    bits: int
    dtype: torch.dtype | None  # of the codes; None: packed into bytes
    scaled: bool
    by_axis: bool  # scales of slices, not of blocks
    zero_is_zero: bool  # code 0 means zero with any scale


@dataclasses.dataclass(frozen=True, slots=True)
class Format:
    number: int
    name: str
    default_block: int  # 0: it has no blocks
    first: MomentFormat
    second: MomentFormat
    of_vectors: str  # the format of tensors of fewer than two dimensions; for most formats the same

    def of(self, moment: Moment) -> MomentFormat:
        return self.first if moment == "first" else self.second


def _moment_format(info: Any) -> MomentFormat:
    element = _text(info.element)
    return MomentFormat(
        bits=info.bits,
        dtype=None if element == "packed" else getattr(torch, element),
        scaled=info.scale != 0,
        by_axis=info.scale == 2,
        zero_is_zero=info.scale == 0 or info.zero_code == 0,
    )


@functools.cache
def formats() -> dict[str, Format]:
    """Returns all state formats of the library, by name."""
    library = _abi.library()
    infos = [_abi.new(_abi.FormatInfo) for _ in range(library.octavo_format_count())]
    for index, info in enumerate(infos):
        _abi.check(library.octavo_format(index, ctypes.byref(info)))
    names = {info.number: _text(info.name) for info in infos}
    return {
        names[info.number]: Format(
            number=info.number,
            name=names[info.number],
            default_block=info.default_block,
            first=_moment_format(info.moment[0]),
            second=_moment_format(info.moment[1]),
            of_vectors=names[info.of_vectors],
        )
        for info in infos
    }
