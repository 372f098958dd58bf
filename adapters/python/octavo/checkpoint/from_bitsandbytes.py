"""bitsandbytes' states: `state1` and `state2`, with `absmax` and `qmap` where they are 8-bit.

Since 0.49.2 everything but `step` is nested under one key; before, the keys were flat. The block size is
not saved: it is the one that makes as many blocks as `absmax` has entries (256, and 2048 before 0.44).
Where an absmax is 0 the codes mean nothing (CUDA writes 255 for a zero); any code times that scale is zero.

SGD, LARS and Lion keep one state in the same form, and the saved group does not say which: the optimizer
that loads does. RMSprop and Adagrad look the same but for the group's eps, which is 0 in the others.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .._shards import local
from .decoding import check_shape, is_our_map, map_decoder
from .saved import MOMENTS, SavedMoment, plain_moment

NESTED = "__bnb_optimizer_quant_state__"
_BLOCKS = (256, 2048, 4096, 1024, 512, 128, 64, 32)  # the two that were ever saved come first
# All that an entry may hold; the norms are scratch.
KEYS = {NESTED, "step", "gnorm_vec", "unorm_vec"} | {
    f"{key}{slot}" for slot in (1, 2) for key in ("state", "absmax", "qmap", "max", "new_max")
}


def is_bitsandbytes(entry: Mapping[str, Any]) -> bool:
    return NESTED in entry or isinstance(entry.get("state1"), Tensor)


def flatten(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The entry with its nested keys at the top level."""
    nested = entry.get(NESTED, {})
    if not isinstance(nested, Mapping):
        raise ValueError(f"{NESTED} is a {type(nested).__name__}, expected a dict")
    return {**entry, **nested}


def bitsandbytes_moments(
    flat: Mapping[str, Any], shape: tuple[int, ...], group: Mapping[str, Any], saved_group: Mapping[str, Any]
) -> dict[str, SavedMoment]:
    """`flat` is flatten(entry); `group` is of the optimizer that loads, `saved_group` of the file."""
    first = flat.get("state1")
    if not isinstance(first, Tensor):
        raise ValueError("a bitsandbytes state without the tensor state1")
    if tuple(local(first).shape) == (2, *shape):
        raise ValueError(
            f"state1 has shape {(2, *shape)} for a parameter of shape {shape}: bitsandbytes' AdEMAMix, which "
            "keeps two first moments and cannot be continued by another optimizer"
        )
    if flat.get("state2") is not None:
        return {
            "exp_avg": _moment(flat, 1, "exp_avg", shape),
            "exp_avg_sq": _moment(flat, 2, "exp_avg_sq", shape),
        }
    if saved_group.get("eps"):
        raise ValueError(
            f"one state and eps={saved_group['eps']}: bitsandbytes' RMSprop or Adagrad, whose state "
            "is neither a momentum nor Lion's"
        )
    name = "momentum_buffer" if "momentum" in group or "betas" not in group else "exp_avg"
    return {name: _moment(flat, 1, name, shape)}


def decay_is_decoupled(algorithm: str) -> bool:
    """Its Adam decays as AdamW does, its SGD adds the decay to the gradient."""
    return algorithm != "sgd"


def is_momentum_group(saved: Mapping[str, Any]) -> bool:
    """Whether a group may be of its SGD: an Adam's has eps, others' SGD a momentum."""
    return "betas" in saved and "momentum" not in saved and saved.get("eps") == 0


def momentum_options(betas: Sequence[float]) -> dict[str, float]:
    """The options of its SGD, which keeps the momentum in betas[0] and uses no dampening."""
    return {"momentum": float(betas[0]), "dampening": 0.0}


def _moment(flat: Mapping[str, Any], slot: int, name: str, shape: tuple[int, ...]) -> SavedMoment:
    key, moment = f"state{slot}", MOMENTS[name]
    state = local(flat[key]).detach()
    check_shape(key, state, shape)
    state = _in_memory_order(key, state)
    if state.dtype != torch.uint8:
        return plain_moment(name, state, shape)
    if f"absmax{slot}" not in flat and f"max{slot}" in flat:
        raise ValueError(
            f"{key} has one scale for the whole tensor (max{slot}): saved by bitsandbytes "
            f"with block_wise=False; only block-wise states, with absmax{slot}, can be read"
        )
    absmax, qmap = flat.get(f"absmax{slot}"), flat.get(f"qmap{slot}")
    if not isinstance(absmax, Tensor) or not isinstance(qmap, Tensor):
        raise ValueError(f"{key} is uint8, but absmax{slot} or qmap{slot} is missing")
    scales, qmap = local(absmax).detach().to(torch.float32).view(-1), local(qmap)
    if qmap.numel() != 256:
        raise ValueError(f"qmap{slot} has {qmap.numel()} entries, expected 256")
    block_size = _block_size(f"absmax{slot}", scales.numel(), math.prod(shape))
    if is_our_map(qmap, moment, "8bit"):
        return SavedMoment(moment, shape, "8bit", block_size, state, scales)
    decoder = map_decoder(state, scales, block_size, qmap)
    return SavedMoment(moment, shape, "", block_size, None, None, decoder)


def _block_size(key: str, blocks: int, numel: int) -> int:
    """With two or more blocks at most one power of two fits. With fewer, all that fit decode to the same
    values.
    """
    for block_size in _BLOCKS:
        if (numel + block_size - 1) // block_size == blocks:
            return block_size
    raise ValueError(
        f"{key} has {blocks} entries for {numel} elements, which no block size "
        "(a power of two from 32 to 4096) makes"
    )


def _in_memory_order(key: str, state: Tensor) -> Tensor:
    """The state as bitsandbytes' CUDA kernels mean it.

    They go along the memory of a parameter that was made contiguous before, while the state of a
    channels_last parameter keeps that one's strides. So element i of the parameter is the i-th in the
    state's memory.
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
    warnings.warn(
        f"bitsandbytes' {key} has strides {state.stride()}: read in the order of its memory, as its CUDA "
        "kernels write it (its CPU backend would mean the order of the indices)",
        stacklevel=2,
    )
    return state.as_strided((state.numel(),), (1,)).view(state.shape)
