"""State dicts of this library: writing them, and reading an entry of one, or of another library's.

loading.py puts into an optimizer what was read.
"""

from __future__ import annotations

import dataclasses
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
    """torch.optim.Optimizer.state_dict in our form, hooks included. Nothing is registered or changed on the
    way: several threads may do it at once.
    """
    for hook in list(optimizer._optimizer_state_dict_pre_hooks.values()):
        hook(optimizer)
    saved = packed(optimizer, save_entry)
    for post_hook in list(optimizer._optimizer_state_dict_post_hooks.values()):
        replaced = post_hook(optimizer, saved)
        saved = saved if replaced is None else replaced
    return saved


def packed(optimizer: Optimizer, form: Callable[[dict[str, Any], Tensor, Kind], Any]) -> dict[str, Any]:
    """A state dict whose entries `form` makes."""
    from ..optim.compat.decay import saved_option
    from ..optim.registration import state_kind

    places: dict[int, tuple[int, dict[str, Any], int]] = {}  # number, group and index there
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
            states[number] = form(entry.plain(), param, state_kind(optimizer, param, group))
    return {"state": states, "param_groups": groups}


def save_entry(entry: dict[str, Any], param: Tensor, kind: Kind) -> dict[str, Any]:
    """One parameter's entry of a state dict. Tensors are the optimizer's own, but for the step count, which
    parameters share in memory and must not share in a file that is loaded in place.
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
    """Codes so that nobody takes them for numbers: with one dimension more than the parameter. Most of
    torch's optimizers look for `step` when they load, and codes have none; one that keeps no count fails on
    the shape at its first step.
    """
    return value.unsqueeze(-1) if name in known_moments() and name + SCALE in entry else value


def _readable(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The reverse, for dicts of this version; those of 0.1 have neither."""
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
        # Bytes: no collective moves int16.
        bits = entry[MASTER].view(torch.uint8).view(*here, entry[MASTER].element_size())
        saved[MASTER] = like(bits, param, (*shape, bits.shape[-1]))
    return saved


def kind_of_entry(entry: Mapping[str, Any], hint: Kind) -> Kind:
    """The kind that the tensors of a live entry show; `hint` where several would look the same. RuntimeError
    where none fits: the core trusts the sizes of buffers.
    """
    shape, memory = hint.rows.local_shape, hint.memory_shape
    if _fits(entry, shape, memory, hint.state, hint.block_size):
        return hint
    found = _shown_format(entry, shape, memory, hint.state, hint.block_size)
    if found is None:
        shown = ", ".join(
            f"{k} {v.dtype} {tuple(v.shape)}" for k, v in entry.items() if isinstance(v, Tensor)
        )
        raise RuntimeError(
            f"its state fits no format for shape {shape}: {shown}; parameters must keep "
            "their shape (or make a new optimizer)"
        )
    return dataclasses.replace(hint, state=found[0], block_size=found[1])


def _shown_format(
    entry: Mapping[str, Any], shape: tuple[int, ...], memory: tuple[int, ...], state: str, block_size: int
) -> tuple[str, int] | None:
    """Format and block size (0 without blocks) that all moments of an entry fit; the given ones first. The
    number of scales tells the block size, but where there is a single block: then it does not matter.
    """
    for candidate in (state, *(s for s in _describe.formats() if s != state)):
        default = _codec.default_block_size(candidate)
        for block in (block_size or default, default, *_codec.BLOCK_SIZES) if default else (0,):
            if _fits(entry, shape, memory, candidate, block):
                return candidate, block
    return None


def _fits(
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
    """One parameter's state, read and checked."""

    param: Tensor
    kind: Kind
    saved: SavedState
    whole: bool  # the saved tensors are of the whole parameter, not of the rows that are here
    order: tuple[int, ...]  # memory order of the saved codes
    residual: Tensor | None
    residual_bits: int


def _unsharded(entry: Mapping[str, Any], param: Tensor) -> tuple[dict[str, Any], bool]:
    """The entry without DTensors, and whether its tensors are of the whole parameter."""
    whole = True
    # A dict of unsharded parameters that torch.distributed.checkpoint has cut: flat scales and packed codes
    # are not cut between rows.
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
    return out, whole or not is_sharded(param)


def _read_own(
    entry: Mapping[str, Any], shape: tuple[int, ...], group: Mapping[str, Any]
) -> tuple[SavedState, tuple[int, ...]] | None:
    """Our own entry; None where it is not (floats alone read the same in every library)."""
    names = [name for name in known_moments() if isinstance(entry.get(name), Tensor)]
    if not any(name + SCALE in entry for name in names):
        return None
    if "step" not in entry:
        raise ValueError("step is missing: bias correction needs it")
    order = tuple(entry.get(ORDER, range(len(shape))))
    if sorted(order) != list(range(len(shape))):
        raise ValueError(f"{ORDER} is {order}, expected an order of {len(shape)} dimensions")
    # The format comes from the tensors, not from the group: a parameter may have had a format of its own.
    # What the group says is asked first, and is what is expected where none fits.
    said = str(group.get("state")) if _codec.default_block_size(str(group.get("state"))) else "8bit"
    memory, block = tuple(shape[d] for d in order), int(group.get("block_size") or 0)
    by_rows = any(name + SCALE in entry and entry[name + SCALE].dim() == 2 for name in names)
    found = None if by_rows else _shown_format(entry, shape, memory, said, block)
    found = found or (said, block or _codec.default_block_size(said))
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
    return SavedMoment(
        moment, shape, "", block, None, None,
        lambda: rows.decode_rows(moment, state, codes, scales, phase, shape, block),
    )  # fmt: skip


def _read_residual(entry: Mapping[str, Any], shape: tuple[int, ...]) -> tuple[Tensor | None, int]:
    bits = entry.get(MASTER)
    if not isinstance(bits, Tensor):
        return None, 0
    if bits.dtype == torch.uint8 and tuple(bits.shape[:-1]) == shape and bits.shape[-1] in (1, 2):
        width = bits.shape[-1]
        bits = bits.contiguous().view(torch.int8 if width == 1 else torch.int16).view(shape)
    if bits.dtype not in (torch.int8, torch.int16) or tuple(bits.shape) != shape:
        raise ValueError(
            f"{MASTER} is {bits.dtype} of shape {tuple(bits.shape)}, expected int8 or int16 of shape {shape}"
        )
    return bits, 24 if bits.dtype == torch.int8 else 32


def read_entry(
    entry: Mapping[str, Any],
    param: Tensor,
    kind: Kind,
    algorithm: str,
    group: Mapping[str, Any],
    wanted: tuple[str, ...],
) -> Loaded:
    """One parameter's entry of any known state dict, whose group is `group`. ValueError where it does not
    fit.
    """
    plain, whole = _unsharded(entry, param)
    plain = _readable(plain)
    shape = kind.rows.shape if whole else kind.rows.local_shape
    order = tuple(range(len(shape)))
    if (own := _read_own(plain, shape, group)) is not None:
        saved, order = own
    else:
        peer = read_peer_state(plain, shape, algorithm, group)
        if peer is None and not wanted and "step" in plain:  # without moments there is only a count
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
    residual, bits = _read_residual(plain, shape)
    if residual is not None and kind.master not in (24, 32):
        saved = dataclasses.replace(saved, ignored=(*saved.ignored, MASTER))
    return Loaded(param, kind, saved, whole, order, residual, bits)
