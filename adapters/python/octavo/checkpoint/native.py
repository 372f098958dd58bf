"""Writes state dicts, and reads an entry of a state dict of this library or of another one.

loading.py puts the entries into an optimizer.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import _codec, _describe
from .._codec import MASTER, NATIVE_STEP, SCALE, STEP
from .._shards import Rows, is_sharded, like, local
from . import rows
from .importers import read_peer_state, read_step
from .saved import SavedMoment, SavedState, known_moments

if TYPE_CHECKING:
    from ..optim.optimizer import Optimizer
    from ..optim.states.state import Kind

ORDER = "dim_order"

# --- Writing --------------------------------------------------------------------------------------


def save(optimizer: Optimizer) -> dict[str, Any]:
    """Implements torch.optim.Optimizer.state_dict, with its hooks. It registers and changes nothing, so
    several threads may call it at the same time.
    """
    for hook in list(optimizer._optimizer_state_dict_pre_hooks.values()):
        hook(optimizer)
    saved = build_state_dict(optimizer, save_entry)
    for post_hook in list(optimizer._optimizer_state_dict_post_hooks.values()):
        replaced = post_hook(optimizer, saved)
        saved = saved if replaced is None else replaced
    return saved


def build_state_dict(
    optimizer: Optimizer, make_entry: Callable[[dict[str, Any], Tensor, Kind], Any]
) -> dict[str, Any]:
    """Returns a state dict whose entries `make_entry` makes."""
    from ..optim.compat.decay import saved_option
    from ..optim.registration import state_kind

    places: dict[int, tuple[int, dict[str, Any], int]] = {}  # number, group, index in the group
    groups = []
    for group in optimizer.param_groups:
        for index, param in enumerate(group["params"]):
            places.setdefault(id(param), (len(places), group, index))
        numbers = [places[id(p)][0] for p in group["params"]]
        groups.append({**group, **saved_option(optimizer.algorithm), "params": numbers})
    states: dict[Any, Any] = {}
    optimizer.synchronize()
    optimizer._track_state()
    for param, entry in list(optimizer.state.items()):
        if id(param) not in places:
            states[param] = entry
            continue
        number, group, index = places[id(param)]
        with optimizer._named(group, index):
            states[number] = make_entry(entry.plain(), param, state_kind(optimizer, param, group))
    return {"state": states, "param_groups": groups}


def save_entry(entry: dict[str, Any], param: Tensor, kind: Kind) -> dict[str, Any]:
    """Returns one parameter's entry of a state dict. It has the optimizer's own tensors, except the step
    count: parameters share the memory of step counts, but must not share it in a file that is loaded in
    place.
    """
    saved = dict(entry)
    if isinstance(saved.get(STEP), Tensor):
        saved[STEP] = saved[STEP].clone()
    if is_sharded(param) and kind.rows.shape:
        saved = _save_rows(saved, param, kind)
    else:
        saved = {key: _as_codes(value, key, saved) for key, value in saved.items()}
        if kind.order != tuple(range(len(kind.order))):
            saved[ORDER] = kind.order
    native = any(name + SCALE in saved for name in known_moments())
    return {NATIVE_STEP if native and key == STEP else key: value for key, value in saved.items()}


def _as_codes(value: Any, name: str, entry: Mapping[str, Any]) -> Any:
    """Adds a dimension to codes, so that other optimizers do not read them as values. Most of torch's
    optimizers look for `step` when they load, and codes have none; one without a count fails at the shape in
    its first step.
    """
    return value.unsqueeze(-1) if name in known_moments() and name + SCALE in entry else value


def _readable(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Reverses save_entry(). Dicts of version 0.1 have neither the dimension nor the name."""
    out = {STEP if key == NATIVE_STEP else key: value for key, value in entry.items()}
    if NATIVE_STEP in entry:
        for name in known_moments():
            if isinstance(out.get(name), Tensor) and name + SCALE in out and out[name].shape[-1:] == (1,):
                out[name] = out[name].squeeze(-1)
    return out


def _save_rows(entry: dict[str, Any], param: Tensor, kind: Kind) -> dict[str, Any]:
    shape, here, row = kind.rows.shape, kind.rows.local_shape, kind.rows.row
    saved = {key: value for key, value in entry.items() if key not in known_moments()}
    for name, moment in ((n, m) for n, m in known_moments().items() if n in entry):
        codes = _as_codes(rows.codes_to_rows(entry[name], moment, kind.state, here), name, entry)
        saved[name] = like(codes, param, (shape[0], *codes.shape[1:]))
        if name + SCALE in entry:
            scales = rows.scales_to_rows(entry[name + SCALE], kind.state, here[0], row, kind.block_size)
            saved[name + SCALE] = like(scales, param, (shape[0], *scales.shape[1:]))
    if MASTER in entry:
        # They are saved as bytes, because no collective moves int16.
        bits = entry[MASTER].view(torch.uint8).view(*here, entry[MASTER].element_size())
        saved[MASTER] = like(bits, param, (*shape, bits.shape[-1]))
    return saved


def kind_of_entry(entry: Mapping[str, Any], hint: Kind) -> Kind:
    """Returns the kind that matches the tensors of an entry: `hint` if it does. RuntimeError if none matches,
    because the core does not check the sizes of buffers.
    """
    shape, memory = hint.rows.local_shape, hint.memory_shape
    found = _matching_format(entry, shape, memory, hint.state, hint.block_size)
    if found is None:
        shown = ", ".join(
            f"{k} {v.dtype} {tuple(v.shape)}" for k, v in entry.items() if isinstance(v, Tensor)
        )
        raise RuntimeError(
            f"its state fits no format for shape {shape}: {shown}; parameters must keep "
            "their shape (or make a new optimizer)"
        )
    return dataclasses.replace(hint, state=found[0], block_size=found[1])


def _matching_format(
    entry: Mapping[str, Any], shape: tuple[int, ...], memory: tuple[int, ...], state: str, block_size: int
) -> tuple[str, int] | None:
    """Returns format and block size (0 without blocks) that all moments of an entry match; the given ones are
    tried first. The number of scales decides the block size; a single block decodes equally with all sizes.
    """
    for candidate in (state, *(s for s in _describe.formats() if s != state)):
        default = _codec.default_block_size(candidate)
        for block in (block_size or default, default, *_codec.BLOCK_SIZES) if default else (0,):
            if _matches(entry, shape, memory, candidate, block):
                return candidate, block
    return None


def _matches(
    entry: Mapping[str, Any], shape: tuple[int, ...], memory: tuple[int, ...], state: str, block: int
) -> bool:
    for name, moment in known_moments().items():
        codes, scales = entry.get(name), entry.get(name + SCALE)
        if not isinstance(codes, Tensor):
            continue
        dtype = _codec.code_dtype(moment, state)
        if codes.dtype != (dtype or torch.uint8) or (codes.shape != shape if dtype else codes.dim() != 1):
            return False
        if isinstance(scales, Tensor) and scales.dtype != torch.float32:
            return False
        count = scales.numel() if isinstance(scales, Tensor) else 0
        if (codes.numel() * codes.element_size(), count) != _codec.layout(moment, state, memory, block):
            return False
    return True


# --- Reading --------------------------------------------------------------------------------------


@dataclasses.dataclass(slots=True)
class Loaded:
    """One parameter's state after it was read and checked."""

    param: Tensor
    kind: Kind
    saved: SavedState
    whole: bool  # the saved tensors have all rows of a sharded parameter, not only the local rows
    order: tuple[int, ...]  # memory order of the saved codes
    residual: Tensor | None

    def local_rows(self, values: Tensor) -> Tensor:
        """Returns the local rows of values in the parameter's logical shape."""
        first = self.kind.rows.first
        return values[first : first + self.kind.rows.count] if self.whole else values


def _unsharded(entry: Mapping[str, Any], param: Tensor) -> tuple[dict[str, Any], bool]:
    """Returns the entry without DTensors, and whether it has all rows of a sharded parameter."""
    whole = True
    # torch.distributed.checkpoint shards a dict of unsharded parameters, too, but it does not cut flat scales
    # and packed codes between rows.
    by_rows = not any(
        key.endswith(SCALE) and isinstance(value, Tensor) and is_sharded(value) and value.dim() == 1
        for key, value in entry.items()
    )
    out: dict[str, Any] = {}
    for key, value in entry.items():
        if isinstance(value, Tensor) and is_sharded(value):
            if by_rows and is_sharded(param) and value.placements == param.placements:  # type: ignore[attr-defined]
                value, whole = local(value), False
            else:
                value = value.full_tensor()  # type: ignore[attr-defined]
        out[key] = value
    return out, whole and is_sharded(param)


def _read_own(
    entry: Mapping[str, Any], shape: tuple[int, ...], group: Mapping[str, Any]
) -> tuple[SavedState, tuple[int, ...]] | None:
    """Reads an entry of this library; None for another entry. Floats are equal in all libraries."""
    names = [name for name in known_moments() if isinstance(entry.get(name), Tensor)]
    if not any(name + SCALE in entry for name in names):
        return None
    if "step" not in entry:
        raise ValueError("step is missing: bias correction needs it")
    order = tuple(entry.get(ORDER, range(len(shape))))
    if sorted(order) != list(range(len(shape))):
        raise ValueError(f"{ORDER} is {order}, expected an order of {len(shape)} dimensions")
    # The tensors decide the format, because a parameter may have an override. The group's format is tried
    # first, and errors name it.
    asked = str(group.get("state")) if _codec.default_block_size(str(group.get("state"))) else "8bit"
    memory, block = tuple(shape[d] for d in order), int(group.get("block_size") or 0)
    by_rows = any(name + SCALE in entry and entry[name + SCALE].dim() == 2 for name in names)
    found = None if by_rows else _matching_format(entry, shape, memory, asked, block)
    found = found or (asked, block or _codec.default_block_size(asked))
    moments = {name: _read_moment(entry, name, shape, order, *found) for name in names}
    return SavedState(read_step(entry["step"]), moments), order


def _read_moment(
    entry: Mapping[str, Any],
    name: str,
    shape: tuple[int, ...],
    order: tuple[int, ...],
    state: str,
    block: int,
) -> SavedMoment:
    moment, codes, scales = known_moments()[name], entry[name], entry.get(name + SCALE)
    if scales is None:
        raise ValueError(f"{name + SCALE} is missing: {name} cannot be read without its scales")
    if not isinstance(scales, Tensor) or scales.dtype != torch.float32:
        raise ValueError(
            f"{name + SCALE} is {getattr(scales, 'dtype', type(scales))}, expected torch.float32"
        )
    if bool((scales < 0).any()):
        raise ValueError(f"{name + SCALE} has negative entries: the state is corrupt")
    if scales.dim() == 2:
        return _read_rows(name, codes, scales, shape)
    memory = tuple(shape[d] for d in order)
    state = _codec.in_blocks(moment, state, len(memory))
    if codes.dtype != torch.uint8 and not (codes.is_floating_point() and codes.element_size() == 1):
        raise ValueError(
            f"{name} has dtype {codes.dtype}, expected codes (uint8 or float8) beside its scales"
        )
    if _codec.code_dtype(moment, state) is not None:
        if tuple(codes.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(codes.shape)}, but the parameter has shape {shape}")
        codes = codes.permute(order).reshape(-1)
    expected = _codec.layout(moment, state, memory, block)
    got = codes.numel() * codes.element_size(), scales.numel()
    if got != expected:
        raise ValueError(
            f"{name} has {got[0]} bytes of {state} codes and {got[1]} scales, expected {expected[0]} and "
            f"{expected[1]} for shape {shape} and blocks of {block}"
        )
    return SavedMoment(moment, memory, state, block, codes, scales)


def _read_rows(name: str, codes: Tensor, scales: Tensor, shape: tuple[int, ...]) -> SavedMoment:
    moment, count, row = known_moments()[name], shape[0], Rows(shape, 0, shape[0]).row
    if count == 0:
        nothing = torch.zeros(shape, dtype=torch.float32, device="cpu")
        return SavedMoment(moment, shape, "fp32", 0, nothing, None)
    try:
        state, block, phase = rows.read_tags(scales[:, -1])
    except ValueError as error:
        raise ValueError(f"{name + SCALE}: {error}") from None
    per_row = rows.row_bytes(moment, state, row)
    want = (torch.uint8, count * per_row, (count, rows.touched(row, block) + 1))
    got = (codes.dtype, codes.numel(), tuple(scales.shape))
    if got != want:
        raise ValueError(
            f"{name} has {got[1]} codes of {got[0]} and scales of shape {got[2]}, expected {want[1]} of "
            f"{want[0]} and {want[2]} for rows of shape {shape} in {state}"
        )
    scales = scales[:, :-1]
    if torch.equal(phase, rows.phases(count, row, block, phase.device)):
        flat = rows.rows_to_codes(codes, moment, state, shape)
        return SavedMoment(moment, shape, state, block, flat, rows.rows_to_scales(scales, row, block))
    decoder = functools.partial(rows.decode_rows, moment, state, codes, scales, phase, shape, block)
    return SavedMoment(moment, shape, "", block, None, None, decoder)


def _read_residual(entry: Mapping[str, Any], shape: tuple[int, ...]) -> Tensor | None:
    bits = entry.get(MASTER)
    if not isinstance(bits, Tensor):
        return None
    if bits.dtype == torch.uint8 and tuple(bits.shape[:-1]) == shape and bits.shape[-1] in (1, 2):
        width = bits.shape[-1]
        bits = bits.contiguous().view(torch.int8 if width == 1 else torch.int16).view(shape)
    if bits.dtype not in (torch.int8, torch.int16) or tuple(bits.shape) != shape:
        raise ValueError(
            f"{MASTER} is {bits.dtype} of shape {tuple(bits.shape)}, expected int8 or int16 of shape {shape}"
        )
    return bits


def read_entry(
    entry: Mapping[str, Any],
    param: Tensor,
    kind: Kind,
    algorithm: str,
    group: Mapping[str, Any],
    wanted: tuple[str, ...],
) -> Loaded:
    """Reads one parameter's entry of any supported state dict, whose group is `group`. ValueError if it does
    not match the parameter.
    """
    plain, whole = _unsharded(entry, param)
    plain = _readable(plain)
    shape = kind.rows.shape if whole or not is_sharded(param) else kind.rows.local_shape
    order = tuple(range(len(shape)))
    if (own := _read_own(plain, shape, group)) is not None:
        saved, order = own
    else:
        peer = read_peer_state(plain, shape, algorithm, group)
        if peer is None and not wanted and "step" in plain:  # an optimizer without moments
            peer = SavedState(read_step(plain["step"]), {})
        if peer is None:
            keys = ", ".join(map(str, entry))
            raise ValueError(f"its state has the keys {keys}, which no known optimizer writes")
        saved = peer
    missing = [name for name in wanted if name not in saved.moments]
    if missing:
        raise ValueError(
            f"its state has no {' and no '.join(missing)}: it comes from another kind of optimizer"
        )
    residual = _read_residual(plain, shape)
    if residual is not None and kind.master not in (24, 32):
        saved = dataclasses.replace(saved, ignored=(*saved.ignored, MASTER))
    return Loaded(param, kind, saved, whole, order, residual)
