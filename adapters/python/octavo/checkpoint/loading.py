"""Loading a state dict, of this library or of others, into an optimizer.

A load has two halves. First every entry is read and checked; an entry that does not fit raises. Then states
are replaced one parameter at a time, so that memory never holds a second set of states or the fp32 values of
all of them. All that can be wrong is looked for in the first half: on an error nothing has changed. A buffer
that already has the right shape is written in place, because a CUDA graph or a plan may hold its address.
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
from .._shards import is_sharded, local
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

# What an optimizer keeps of its own groups when it loads others'.
_OWN_OPTIONS = {"state", "block_size", "master", "min_quantized_size", "capturable", "fused", "foreach"}
_OWN_OPTIONS |= {"differentiable", "decoupled_weight_decay"}


def load(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> None:
    """torch.optim.Optimizer.load_state_dict for any state dict that is known here."""
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
                    entry = _apart(entry, param, live)
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
    """ValueError for a tensor that has none."""
    for key, value in entry.items():
        if isinstance(value, Tensor) and local(value).is_meta:
            raise ValueError(f"{key} is a tensor on meta, which has no values; load the file onto the CPU")


def _live_memory(optimizer: Optimizer) -> dict[int, tuple[int, str]]:
    """Whose the storages of the optimizer's own states are, by address: parameter and key."""
    return {
        value.untyped_storage().data_ptr(): (id(param), key)
        for param, entry in optimizer.entries()
        for key, value in entry.items()
        if isinstance(value, Tensor)
    }


def _apart(entry: Mapping[str, Any], param: Tensor, live: Mapping[int, tuple[int, str]]) -> dict[str, Any]:
    """The entry, with copies of what lies in the memory of another state of the same optimizer: that one is
    written while this is yet to be read.
    """
    out = dict(entry)
    for key, value in out.items():
        if isinstance(value, Tensor) and type(local(value)) is Tensor:
            owner = live.get(local(value).untyped_storage().data_ptr(), (id(param), key))
            if owner != (id(param), key):
                out[key] = value.clone()
    return out


def _check_moments(item: Loaded, algorithm: str) -> None:
    """ValueError for moments of another algorithm, and for those that could not be encoded."""
    ours = algorithms()[algorithm].all_slots
    for name, saved in item.saved.moments.items():
        if name not in ours:
            raise ValueError(f"its state has {name}: it comes from another kind of optimizer")
        if saved.is_negative():
            raise ValueError(f"{name} has negative entries: the state is corrupt")


def _compare_decay(
    optimizer: Optimizer, saved_groups: Sequence[Mapping[str, Any]], states: Mapping[Any, Any]
) -> None:
    """Warns where weight decay means something else than in the run that was saved."""
    from ..optim.compat import decay

    for group, saved in zip(optimizer.param_groups, saved_groups, strict=True):
        was = saved.get(decay.KEY)
        entries = [states.get(number) for number in saved["params"]]
        if any(entry and bitsandbytes.is_bitsandbytes(entry) for entry in entries):
            was = bitsandbytes.decay_is_decoupled(algorithms()[optimizer.algorithm])
        if decay.warn_if_changed("the loaded state", was, optimizer, group["weight_decay"]):
            return


def _merge(optimizer: Optimizer, group: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """The group after loading: the saved options, except those that say how states are stored here."""
    from ..optim.options import check_group

    taken = {k: copy.deepcopy(v) for k, v in saved.items() if k not in _OWN_OPTIONS and k != "params"}
    described = algorithms()[optimizer.algorithm]
    bitsandbytes.take_options(taken, described)
    of_others = saved.get("eps") and "eps" not in group  # the same names, and other numbers
    for name in {option.tuple for option in described.options} & taken.keys():
        if of_others or len(taken[name]) != len(group[name]):
            del taken[name]
    if isinstance(taken.get("seed"), int):
        taken["seed"] %= 1 << 64  # version 0.2 took any
    if taken.get("clip_grad_norm", group) is None:
        del taken["clip_grad_norm"]  # a run that did not clip does not stop the next one from it
    merged = {**group, **taken}
    if "lr" in taken and not isinstance(group["lr"], Tensor):
        merged["lr"] = float(taken["lr"])
    check_group(described, merged)
    return merged


def write_entry(
    entry: dict[str, Any], item: Loaded, moments: tuple[tuple[str, Any], ...], device: torch.device
) -> None:
    """Turns a live entry of optimizer.state, on `device`, into what was read."""
    kind, here = item.kind, local(item.param)
    for name, moment in moments:
        saved = item.saved.moments[name]
        codes, scales = _taken(saved, item) or _encode(saved, item, moment)
        _put(entry, name, _shaped(codes, moment, kind, here), device)
        if scales is not None and _codec.default_block_size(kind.state):
            _put(entry, name + SCALE, scales.reshape(-1).to(torch.float32), device)
        else:
            entry.pop(name + SCALE, None)
    if kind.master in (24, 32):
        _put(entry, MASTER, masters.residual_for(item, here), device)
    else:
        entry.pop(MASTER, None)


def _taken(saved: SavedMoment, item: Loaded) -> tuple[Tensor, Tensor | None] | None:
    """The saved bytes of what is here; None where they do not fit."""
    kind = item.kind
    taken = saved.take_over(kind.state, kind.block_size) if item.order == kind.order else None
    if taken is None or not item.whole or not is_sharded(item.param):
        return taken
    count = kind.rows.count * kind.rows.row
    return rows.cut(*taken, saved.moment, kind.state, kind.block_size, kind.rows.offset, count)


def of_local_rows(values: Tensor, item: Loaded) -> Tensor:
    """Values in the parameter's logical shape, cut to the rows that are here."""
    if not item.whole or not is_sharded(item.param):
        return values
    first = item.kind.rows.first
    return values[first : first + item.kind.rows.count]


def _encode(saved: SavedMoment, item: Loaded, moment: _codec.Moment) -> tuple[Tensor, Tensor]:
    kind = item.kind
    values = saved.values()
    if item.order != tuple(range(len(item.order))):
        values = values.permute(_codec.inverse(item.order))
    values = of_local_rows(values, item).permute(kind.order)
    return _codec.encode(moment, kind.state, values, kind.block_size)


def _shaped(codes: Tensor, moment: _codec.Moment, kind: Kind, param: Tensor) -> Tensor:
    """Flat codes in memory order (or floats in the logical shape) as the entry keeps them."""
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


def _put(entry: dict[str, Any], key: str, value: Tensor, device: torch.device) -> None:
    """In place where it fits: a CUDA graph or a plan may hold the address."""
    present, value, looks = entry.get(key), value.detach(), (value.dtype, value.shape, device)
    if not isinstance(present, Tensor) or (present.dtype, present.shape, present.device) != looks:
        entry[key] = torch.empty_like(value, device=device)  # dense, whatever the file's strides
    # float8 as bytes: not every device copies it.
    target, source = (t.view(torch.uint8) if t.element_size() == 1 else t for t in (entry[key], value))
    target.copy_(source)
