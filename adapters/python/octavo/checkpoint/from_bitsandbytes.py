"""bitsandbytes' states: `state1` and `state2`, with `absmax` and `qmap` if they are 8-bit.

Since 0.49.2 everything except `step` is nested under one key; earlier the keys were flat. The block size is
not saved; it follows from the number of entries of `absmax` (256, and 2048 before 0.44). If an absmax is 0,
the codes have no meaning (CUDA writes 255 for a zero), because any code times that scale is zero.

The saved group does not name its optimizer, so the description of the optimizer that loads decides which
moments these are. Optimizers with one state keep it in the signed map, even if it is a second moment. They
differ only in the group's eps, which is 0 if the state is a first moment.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._describe import Algorithm
from .._shards import local
from .._warn import warn
from .decoding import check_shape, is_our_map, map_decoder
from .saved import SavedMoment, known_moments, plain_moment

NESTED = "__bnb_optimizer_quant_state__"
_BLOCKS = (256, 2048, 4096, 1024, 512, 128, 64, 32)  # the first two were ever saved
# All keys of an entry; the norms are temporary.
KEYS = {NESTED, "step", "gnorm_vec", "unorm_vec"} | {
    f"{key}{slot}" for slot in (1, 2) for key in ("state", "absmax", "qmap", "max", "new_max")
}


def is_bitsandbytes(entry: Mapping[str, Any]) -> bool:
    return NESTED in entry or isinstance(entry.get("state1"), Tensor)


def flatten(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the entry with its nested keys at the top level."""
    nested = entry.get(NESTED, {})
    if not isinstance(nested, Mapping):
        raise ValueError(f"{NESTED} is a {type(nested).__name__}, expected a dict")
    return {**entry, **nested}


def bitsandbytes_moments(
    flat: Mapping[str, Any], shape: tuple[int, ...], described: Algorithm, saved_group: Mapping[str, Any]
) -> dict[str, SavedMoment]:
    """Reads flatten(entry). `described` is the optimizer that loads, `saved_group` is the file's group."""
    first = flat.get("state1")
    if not isinstance(first, Tensor):
        raise ValueError("a bitsandbytes state without the tensor state1")
    peers = {slot.peer: name for name, slot in described.all_slots.items() if slot.peer}
    stacked = tuple(local(first).shape) == (2, *shape)
    had = ["state1[0]", "state1[1]"] if stacked else ["state1"]
    had += ["state2"] if flat.get("state2") is not None else []
    if sorted(had) != sorted(peers):
        both = f"state1 has shape {(2, *shape)}, two first moments, and " if stacked else ""
        theirs, ours = " and ".join(had), " and ".join(sorted(peers)) or "no state"
        raise ValueError(
            f"{both}bitsandbytes keeps {theirs} here, but {ours} for {described.title}: it comes from "
            "another kind of optimizer"
        )
    if len(had) == 1 and saved_group.get("eps") and known_moments()[peers["state1"]] == "first":
        raise ValueError(
            f"one state and eps={saved_group['eps']}: it is a second moment, but state1 of {described.title} "
            "is a first one: it comes from another kind of optimizer"
        )
    return {name: _moment(flat, key, name, shape) for key, name in peers.items()}


def decay_is_decoupled(described: Algorithm) -> bool:
    """Returns whether bitsandbytes applies weight decay to the parameter: always with two states."""
    return described.decoupled or any(slot.peer == "state2" for slot in described.all_slots.values())


def translate_options(options: dict[str, Any], described: Algorithm) -> None:
    """Translates the options of a group with one state in place: betas[0] is the formula's only number."""
    names = [option.tuple or option.name for option in described.options]
    if "betas" in names or "betas" not in options or (options.get("eps") and "eps" not in names):
        return
    first = next((name for name in ("alpha", "momentum") if name in names), None)
    if first in options:
        return
    betas = options.pop("betas")
    if first is not None:
        options[first] = float(betas[0])
    if "dampening" in names:
        options["dampening"] = 0.0


def _moment(flat: Mapping[str, Any], key: str, name: str, shape: tuple[int, ...]) -> SavedMoment:
    """Reads a moment. `key` is state1, state2, or one of two stacked moments: state1[0]."""
    slot, part, moment = key[5], key[7:8], known_moments()[name]
    state = local(flat[f"state{slot}"]).detach()
    absmax, qmap = flat.get(f"absmax{slot}"), flat.get(f"qmap{slot}")
    if part:
        state = state[int(part)]
        absmax = local(absmax)[int(part)] if isinstance(absmax, Tensor) else None
    check_shape(key, state, shape)
    state = _in_memory_order(key, state)
    if state.dtype != torch.uint8:
        return plain_moment(name, state, shape)
    if absmax is None and f"max{slot}" in flat:
        raise ValueError(
            f"{key} has one scale for the whole tensor (max{slot}): saved by bitsandbytes "
            f"with block_wise=False; only block-wise states, with absmax{slot}, can be read"
        )
    if not isinstance(absmax, Tensor) or not isinstance(qmap, Tensor):
        raise ValueError(f"{key} is uint8, but absmax{slot} or qmap{slot} is missing")
    scales, qmap = local(absmax).detach().to(torch.float32).reshape(-1), local(qmap)
    if qmap.numel() != 256:
        raise ValueError(f"qmap{slot} has {qmap.numel()} entries, expected 256")
    block_size = _block_size(f"absmax{slot}", scales.numel(), math.prod(shape))
    if is_our_map(qmap, moment, "8bit"):
        return SavedMoment(moment, shape, "8bit", block_size, state, scales)
    decoder = map_decoder(state, scales, block_size, qmap)
    return SavedMoment(moment, shape, "", block_size, None, None, decoder)


def _block_size(key: str, blocks: int, numel: int) -> int:
    """Returns the block size. Only a single block has several possible sizes, which decode equally."""
    for block_size in _BLOCKS:
        if (numel + block_size - 1) // block_size == blocks:
            return block_size
    raise ValueError(
        f"{key} has {blocks} entries for {numel} elements, which no block size "
        "(a power of two from 32 to 4096) makes"
    )


def _in_memory_order(key: str, state: Tensor) -> Tensor:
    """Returns the state as bitsandbytes' CUDA kernels use it: element i of the parameter is the i-th in the
    state's memory. They make a channels_last parameter contiguous, but the state keeps the strides.
    """
    if state.is_contiguous():
        return state
    expected = 1
    for stride, size in sorted(zip(state.stride(), state.shape, strict=True)):
        if size > 1 and stride != expected:
            raise ValueError(
                f"{key} has strides {state.stride()} for shape {tuple(state.shape)}: it has gaps"
            )
        expected *= size
    warn(
        f"bitsandbytes' {key} has strides {state.stride()}: read in the order of its memory, as its CUDA "
        "kernels write it (its CPU backend would mean the order of the indices)"
    )
    return state.as_strided((state.numel(),), (1,)).view(state.shape)
