"""Reads the entry of one parameter in another library's optimizer state dict into a SavedState.

The keys identify the library. torch.optim, apex, DeepSpeed and most others have plain tensors under torch's
names. torchao has its tensor classes under these names, bitsandbytes has `state1`, flashoptim has
`exp_avg::quantized`. A ValueError describes the entry; the caller adds the parameter's name.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .._codec import SCALE
from .._describe import algorithms
from .._shards import local
from . import from_bitsandbytes as bitsandbytes
from .from_flashoptim import flashoptim_error_bits, flashoptim_moment, quantized_key, scales_key
from .from_torchao import is_torchao, torchao_moment
from .saved import SavedMoment, SavedState, known_moments, plain_moment

_OWN = {"master", "dim_order"}  # native.py reads these


@functools.cache
def _keys() -> frozenset[str]:
    coded = (f(name) for name in known_moments() for f in (quantized_key, scales_key))
    return frozenset({"step", "error_bits", *known_moments(), *coded})


def refuse_zero(state_dict: Mapping[str, Any]) -> None:
    """Raises ValueError for a rank's file of a checkpoint that DeepSpeed's ZeRO has written."""
    if state_dict.keys() & {"optimizer_state_dict", "base_optimizer_state"}:
        raise ValueError(
            "loaded state dict is a file of DeepSpeed's ZeRO, whose states are flat partitions without names "
            "of parameters, which cannot be loaded; begin with the weights that zero_to_fp32.py of DeepSpeed "
            "makes of the checkpoint, and with new states"
        )


def read_peer_state(
    entry: Mapping[str, Any],
    shape: tuple[int, ...],
    algorithm: str,
    saved_group: Mapping[str, Any] | None = None,
) -> SavedState | None:
    """Reads `entry`, a value of state_dict["state"], of a parameter of `shape`. Returns None if it has no
    other library's form: it is this library's own, or empty.

    `algorithm` is the algorithm of the optimizer that loads. `saved_group` is the parameter group of the
    file, which may have the step or `master_bytewidth`. `shape` is the shape of a DTensor's local part.
    """
    shape, saved = tuple(int(n) for n in shape), saved_group or {}
    if bitsandbytes.is_bitsandbytes(entry):
        flat, described = bitsandbytes.flatten(entry), algorithms()[algorithm]
        moments = bitsandbytes.bitsandbytes_moments(flat, shape, described, saved)
        return SavedState(_step(flat, moments, saved), moments, ignored=_others(flat, bitsandbytes.KEYS))
    if any(name + SCALE in entry for name in known_moments()) or not entry.keys() & (_keys() - {"step"}):
        return None
    found = {name: _moment(name, entry, shape) for name in known_moments()}
    moments = {name: moment for name, moment in found.items() if moment is not None}
    error_bits, master_bits = flashoptim_error_bits(entry, shape, saved)
    return SavedState(
        _step(entry, moments, saved), moments, error_bits, master_bits, _others(entry, _keys() | _OWN)
    )


def _moment(name: str, entry: Mapping[str, Any], shape: tuple[int, ...]) -> SavedMoment | None:
    if quantized_key(name) in entry:
        return flashoptim_moment(name, entry, shape)
    value = entry.get(name)
    if value is None:  # torch writes momentum_buffer = None without momentum
        return None
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} is a {type(value).__name__}, expected a tensor")
    value = local(value)
    return torchao_moment(name, value, shape) if is_torchao(value) else plain_moment(name, value, shape)


def _step(entry: Mapping[str, Any], moments: Mapping[str, SavedMoment], group: Mapping[str, Any]) -> int:
    """Returns the step count, a number or tensor in the entry or (apex and others) in the group."""
    step = entry.get("step", group.get("step"))
    if step is None:
        if any(saved.moment == "second" for saved in moments.values()):
            raise ValueError("step is missing, here and in the group: bias correction needs it")
        return 1 if moments else 0  # some do not count, but a first step made the momentum
    return read_step(step)


def read_step(step: Any) -> int:
    """Returns a step count that is a number or a tensor with one element."""
    if isinstance(step, Tensor):
        step = local(step)
        if step.numel() != 1:
            raise ValueError(f"step has shape {tuple(step.shape)}, expected one number")
        step = step.item()
    if isinstance(step, bool) or not isinstance(step, int | float):
        raise ValueError(f"step is a {type(step).__name__}, expected a number")
    if not math.isfinite(step) or step < 0 or step != int(step):
        raise ValueError(f"step is {step}, expected a whole number, 0 or more")
    return int(step)


def _others(entry: Mapping[str, Any], used: frozenset[str] | set[str]) -> tuple[str, ...]:
    return tuple(sorted(str(key) for key in entry.keys() - used))
