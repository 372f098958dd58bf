"""The state of one parameter: its format, its tensors in optimizer.state[p], and its description for the
core.

Tensors with one code per element have the parameter's shape and memory order; packed nibbles and scales are
flat. Zero bytes are the initial state of every format.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ... import _abi, _codec, _describe
from ..._codec import MASTER, MASTER_DTYPES, SCALE, STEP, Moment
from ..._engine import DTYPES, device_numbers, store_number
from ..._shards import Rows, is_sharded, local, rows_of
from ..overrides import OVERRIDE


def moments_of(algorithm: str, group: Mapping[str, Any]) -> tuple[tuple[str, Moment], ...]:
    """Returns the moments that a group's options need, by their names in torch's state dicts."""
    described = _describe.algorithms()[algorithm]
    return tuple((slot.name, slot.moment) for slot in described.slots(described.switches(group)))


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """Returns the dimensions from the slowest to the fastest in memory. ValueError if there are gaps between
    elements.
    """
    if tensor.is_contiguous():
        return tuple(range(tensor.dim()))
    order = tuple(sorted(range(tensor.dim()), key=lambda d: (-tensor.stride(d), d)))
    if not tensor.permute(order).is_contiguous():
        raise ValueError(
            f"its memory has gaps (shape {tuple(tensor.shape)}, strides {tensor.stride()}), expected a "
            "dense tensor; make it a parameter of its own with .contiguous()"
        )
    return order


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """How a parameter's state is stored."""

    state: str
    block_size: int  # 0 if the format has no blocks
    master: str | int
    rows: Rows
    order: tuple[int, ...]  # the local tensor's dimensions from the slowest to the fastest

    @property
    def memory_shape(self) -> tuple[int, ...]:
        shape = self.rows.local_shape
        return tuple(shape[d] for d in self.order)


def kind_of(param: Tensor, group: Mapping[str, Any]) -> Kind:
    """Returns what the group, or an override on the parameter, asks for. ValueError if it is not possible."""
    asked = {**group, **getattr(param, OVERRIDE, {})}
    here = local(param)
    state, master = asked["state"], asked["master"]
    state = _format_for(state, param.numel(), asked["min_quantized_size"], is_sharded(param))
    block_size = _codec.default_block_size(state) and (
        asked["block_size"] or _codec.default_block_size(state)
    )
    if here.dtype == torch.float32:
        master = "native"  # it is its own master
    if master != "native" and here.dtype != torch.bfloat16:
        raise ValueError(
            f"it is {here.dtype}, and master={master!r} needs torch.bfloat16 (or float32, its own master); "
            "use master='native'"
        )
    rows = rows_of(param)
    order = memory_order(here)
    if is_sharded(param) and order != tuple(range(here.dim())):
        raise ValueError(
            f"its local shard has strides {here.stride()}, expected a contiguous one; call .contiguous()"
        )
    return Kind(state, block_size, master, rows, order)


@functools.lru_cache(maxsize=4096)
def _format_for(state: str, numel: int, min_quantized_size: int, sharded: bool) -> str:
    """Applies the library's rule: small parameters have fp32 states, and some formats cannot be sharded."""
    formats, found = _describe.formats(), _abi.u32()
    status = _abi.library().octavo_format_for(
        formats[state].number, numel, min_quantized_size, sharded, ctypes.byref(found)
    )
    if status:
        raise ValueError(_abi.last_error().removeprefix("[format_for] "))
    return next(name for name, described in formats.items() if described.number == found.value)


def _zero_codes(param: Tensor, dtype: torch.dtype | None, size: int) -> Tensor:
    """Returns zeroed codes: `size` bytes if codes are packed, else a code for each element."""
    if dtype is None:
        return torch.zeros(size, dtype=torch.uint8, device=param.device)
    # Some devices cannot fill float8, so zeros are written as bytes.
    as_bytes = torch.uint8 if dtype.itemsize == 1 else dtype
    zeros = torch.zeros_like(param, dtype=as_bytes, requires_grad=False)
    return zeros if as_bytes == dtype else zeros.view(dtype)


def fill_missing(
    entry: dict[str, Any], param: Tensor, kind: Kind, moments: tuple[tuple[str, Moment], ...]
) -> None:
    """Adds the tensors that the entry of optimizer.state lacks; `param` is local."""
    for name, moment in moments:
        if name not in entry:
            size, count = _codec.layout(moment, kind.state, kind.memory_shape, kind.block_size)
            entry[name] = _zero_codes(param, _codec.code_dtype(moment, kind.state), size)
            if _codec.default_block_size(kind.state):
                entry[name + SCALE] = torch.zeros(count, dtype=torch.float32, device=param.device)
    if MASTER not in entry and kind.master in MASTER_DTYPES:
        entry[MASTER] = torch.zeros_like(param, dtype=MASTER_DTYPES[kind.master], requires_grad=False)


def form_of(
    algorithm: str, param: Tensor, group: Mapping[str, Any], kind: Kind | None = None
) -> dict[str, Tensor]:
    """Returns the state of a parameter as tensors without memory."""
    form, here = dict[str, Tensor](), torch.empty_like(local(param), device="meta")
    fill_missing(form, here, kind or kind_of(param, group), moments_of(algorithm, group))
    return form


def lay_out(entry: dict[str, Any], kind: Kind, moments: tuple[tuple[str, Moment], ...]) -> None:
    """Copies tensors of user code whose memory order is not the core's: codes and master bits have the order
    of the parameter, packed codes and scales are contiguous.
    """
    per_element = [name for name, moment in moments if _codec.code_dtype(moment, kind.state) is not None]
    for key in [key for name, _ in moments for key in (name, name + SCALE)] + [MASTER]:
        value = entry.get(key)
        if not isinstance(value, Tensor):
            continue
        order = kind.order if key in (*per_element, MASTER) else tuple(range(value.dim()))
        if not value.permute(order).is_contiguous():
            entry[key] = value.permute(order).contiguous().permute(_codec.inverse(order))


def describe(
    slot: Any, entry: Mapping[str, Any], param: Tensor, kind: Kind, moments: tuple[tuple[str, Moment], ...]
) -> None:
    """Fills in an octavo_engine_tensor except its group's fields; `param` is local."""
    dims = _codec.core_shape(kind.memory_shape)
    slot.struct_size = ctypes.sizeof(slot)
    slot.param_dtype, slot.store = DTYPES[param.dtype], store_number(kind.master)
    slot.format, slot.block_size = _describe.formats()[kind.state].number, kind.block_size
    slot.ndim, slot.numel, slot.shape[: len(dims)] = len(dims), param.numel(), dims
    slot.param_device_kind, slot.param_device_index = device_numbers(param.device)
    slot.state_device_kind, slot.state_device_index = device_numbers(param.device)
    slot.whole_numel, slot.offset = math.prod(kind.rows.shape), kind.rows.offset
    slot.param, slot.step = param.data_ptr(), entry[STEP].data_ptr()
    if MASTER in entry:
        slot.residual = entry[MASTER].data_ptr()
    for place, (name, _) in enumerate(moments):
        slot.codes[place] = entry[name].data_ptr()
        if name + SCALE in entry:
            slot.scales[place] = entry[name + SCALE].data_ptr()


def state_bytes(entry: Mapping[str, Any]) -> int:
    """Returns the bytes of moments, scales and master bits."""
    return sum(
        math.prod(value.shape) * value.element_size()
        for key, value in entry.items()
        if isinstance(value, Tensor) and key != STEP
    )
