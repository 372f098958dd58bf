"""Loads a state dict of this library or of another one into an optimizer.

First every entry is read and checked, so an error changes nothing. Then states are replaced one parameter at
a time, so memory never has a second set of states or the fp32 values of all states. A buffer with the right
shape is written in place, because a CUDA graph or a step plan may have its address.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import _codec
from .._codec import MASTER, SCALE
from .._describe import algorithms
from .._shards import local
from .._warn import warn
from . import from_bitsandbytes as bitsandbytes
from . import masters, rows
from .from_torchao import is_offloaded, join_offloaded
from .importers import refuse_zero
from .native import Loaded, read_entry
from .saved import SavedMoment

if TYPE_CHECKING:
    from ..optim.optimizer import Optimizer
    from ..optim.states.state import Kind

# A load does not change these options of the groups.
_OWN_OPTIONS = {"state", "block_size", "master", "min_quantized_size", "capturable", "fused", "foreach"}
_OWN_OPTIONS |= {"differentiable", "decoupled_weight_decay"}


def load(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
    """Implements torch.optim.Optimizer.load_state_dict for all supported state dicts."""
    from ..optim.checks import check_param
    from ..optim.states.state import kind_of, moments_of

    given: Any = dict(state_dict)
    optimizer.synchronize()
    for hook in optimizer._optimizer_load_state_dict_pre_hooks.values():
        replaced = hook(optimizer, given)
        given = given if replaced is None else replaced
    if is_offloaded(given):
        given = join_offloaded(given, optimizer.param_groups)
    refuse_zero(given)
    groups, saved_groups = optimizer.param_groups, given["param_groups"]
    if len(groups) != len(saved_groups):
        raise ValueError(
            f"loaded state dict has a different number of parameter groups ({len(saved_groups)}, expected "
            f"{len(groups)})"
        )
    merged, loaded, known = [], [], set()
    ignored: set[str] = set()
    live = _live_memory(optimizer)
    for group, saved_group in zip(groups, saved_groups, strict=True):
        if len(group["params"]) != len(saved_group["params"]):
            raise ValueError(
                "loaded state dict contains a parameter group that doesn't match the size of optimizer's "
                f"group ({len(saved_group['params'])}, expected {len(group['params'])})"
            )
        merged.append(_merge(optimizer, group, saved_group))
        wanted = tuple(name for name, _ in moments_of(optimizer.algorithm, merged[-1]))
        for index, (param, number) in enumerate(zip(group["params"], saved_group["params"], strict=True)):
            known.add(number)
            entry = given["state"].get(number)
            if entry:
                with optimizer._named(group, index):
                    check_param(param)
                    _check_values(entry)
                    entry = _copy_aliases(entry, param, live)
                    item = read_entry(
                        entry, param, kind_of(param, group), optimizer.algorithm, saved_group, wanted
                    )
                    _check_moments(item, optimizer.algorithm)
                    loaded.append(item)
                    ignored.update(item.saved.ignored)
    optimizer._replace_state(merged, loaded, {k: v for k, v in given["state"].items() if k not in known})
    _compare_decay(optimizer, saved_groups, given["state"])
    if ignored:
        names = ", ".join(sorted(ignored))
        warn(f"{type(optimizer).__name__} has no use for {names} of the loaded states")
    for post_hook in optimizer._optimizer_load_state_dict_post_hooks.values():
        post_hook(optimizer)


def _check_values(entry: Mapping[str, Any]) -> None:
    """Raises ValueError for a tensor without values."""
    for key, value in entry.items():
        if isinstance(value, Tensor) and local(value).is_meta:
            raise ValueError(f"{key} is a tensor on meta, which has no values; load the file onto the CPU")


def _live_memory(optimizer: Optimizer) -> dict[int, tuple[int, str]]:
    """Returns the owners of the storages of the optimizer's states, by address: parameter and key."""
    return {
        value.untyped_storage().data_ptr(): (id(param), key)
        for param, entry in optimizer.entries()
        for key, value in entry.items()
        if isinstance(value, Tensor)
    }


def _copy_aliases(
    entry: Mapping[str, Any], param: Tensor, live: Mapping[int, tuple[int, str]]
) -> dict[str, Any]:
    """Returns the entry with copies of tensors in the memory of the optimizer's other states, which are
    written before the tensors are read.
    """
    out = dict(entry)
    for key, value in out.items():
        if isinstance(value, Tensor) and type(local(value)) is Tensor:
            owner = live.get(local(value).untyped_storage().data_ptr(), (id(param), key))
            if owner != (id(param), key):
                out[key] = value.clone()
    return out


def _check_moments(item: Loaded, algorithm: str) -> None:
    """Raises ValueError for moments of another algorithm, and for moments that cannot be encoded."""
    ours = algorithms()[algorithm].all_slots
    for name, saved in item.saved.moments.items():
        if name not in ours:
            raise ValueError(f"its state has {name}: it comes from another kind of optimizer")
        if saved.is_negative():
            raise ValueError(f"{name} has negative entries: the state is corrupt")


def _compare_decay(
    optimizer: Optimizer, saved_groups: Sequence[Mapping[str, Any]], states: Mapping[Any, Any]
) -> None:
    """Warns if the kind of weight decay differs from the saved run's."""
    from ..optim.compat import decay

    for group, saved in zip(optimizer.param_groups, saved_groups, strict=True):
        was = saved.get(decay.KEY)
        entries = [states.get(number) for number in saved["params"]]
        if any(entry and bitsandbytes.is_bitsandbytes(entry) for entry in entries):
            was = bitsandbytes.decay_is_decoupled(algorithms()[optimizer.algorithm])
        if decay.warn_if_changed("the loaded state", was, optimizer, group["weight_decay"]):
            return


def _merge(optimizer: Optimizer, group: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the group after the load: the saved options, except options of how states are stored."""
    from ..optim.options import check_group

    given = {k: copy.deepcopy(v) for k, v in saved.items() if k not in _OWN_OPTIONS and k != "params"}
    described = algorithms()[optimizer.algorithm]
    bitsandbytes.translate_options(given, described)
    from_others = saved.get("eps") and "eps" not in group  # equal names with other meanings
    for name in {option.tuple for option in described.options} & given.keys():
        if from_others or len(given[name]) != len(group[name]):
            del given[name]
    if isinstance(given.get("seed"), int):
        given["seed"] %= 1 << 64  # version 0.2 accepted any integer
    if given.get("clip_grad_norm", group) is None:
        del given["clip_grad_norm"]  # a saved run that did not clip does not switch off this run's clipping
    merged = {**group, **given}
    if "lr" in given and not isinstance(group["lr"], Tensor):
        merged["lr"] = float(given["lr"])
    check_group(described, merged)
    return merged


def write_entry(
    entry: dict[str, Any], item: Loaded, moments: tuple[tuple[str, Any], ...], device: torch.device
) -> None:
    """Writes a loaded state to an entry of optimizer.state on `device`."""
    kind, here = item.kind, local(item.param)
    for name, moment in moments:
        saved = item.saved.moments[name]
        codes, scales = _saved_bytes(saved, item) or _encode(saved, item, moment)
        _write(entry, name, _shaped(codes, moment, kind, here), device)
        if scales is not None and _codec.default_block_size(kind.state):
            _write(entry, name + SCALE, scales.reshape(-1).to(torch.float32), device)
        else:
            entry.pop(name + SCALE, None)
    if kind.master in (24, 32):
        _write(entry, MASTER, masters.residual_for(item, here), device)
    else:
        entry.pop(MASTER, None)


def _saved_bytes(saved: SavedMoment, item: Loaded) -> tuple[Tensor, Tensor | None] | None:
    """Returns the saved bytes of the local rows; None if they have another form."""
    kind = item.kind
    found = saved.bytes_in_format(kind.state, kind.block_size) if item.order == kind.order else None
    if found is None or not item.whole:
        return found
    count = kind.rows.count * kind.rows.row
    return rows.cut(*found, saved.moment, kind.state, kind.block_size, kind.rows.offset, count)


def _encode(saved: SavedMoment, item: Loaded, moment: _codec.Moment) -> tuple[Tensor, Tensor]:
    kind = item.kind
    values = saved.values()
    if item.order != tuple(range(len(item.order))):
        values = values.permute(_codec.inverse(item.order))
    values = item.local_rows(values).permute(kind.order)
    return _codec.encode(moment, kind.state, values, kind.block_size)


def _shaped(codes: Tensor, moment: _codec.Moment, kind: Kind, param: Tensor) -> Tensor:
    """Gives flat codes in memory order, or floats in the logical shape, the form of optimizer.state."""
    dtype = _codec.code_dtype(moment, kind.state)
    if dtype is None:
        return codes.reshape(-1).view(torch.uint8)
    if codes.dtype != dtype:
        codes = codes.contiguous().view(-1).view(torch.uint8).view(dtype)
    if (codes.dim() == 1 and tuple(codes.shape) != kind.memory_shape) or kind.order != tuple(
        range(param.dim())
    ):
        return codes.reshape(kind.memory_shape).permute(_codec.inverse(kind.order))
    return codes.reshape(tuple(param.shape))


def _write(entry: dict[str, Any], key: str, value: Tensor, device: torch.device) -> None:
    """Writes a value in place if dtype, shape and device match, and else to a new tensor."""
    present, value, wanted = entry.get(key), value.detach(), (value.dtype, value.shape, device)
    if not isinstance(present, Tensor) or (present.dtype, present.shape, present.device) != wanted:
        entry[key] = torch.empty_like(value, device=device)  # dense, whatever the file's strides
    # float8 is copied as bytes, because some devices cannot copy it.
    target, source = (t.view(torch.uint8) if t.element_size() == 1 else t for t in (entry[key], value))
    target.copy_(source)
