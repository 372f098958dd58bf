"""Repairs states that other code has changed between two steps: moved to another device, given master bits of
another width, written or reset.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from ... import _codec
from ..._codec import MASTER, MASTER_DTYPES, SCALE, STEP
from ...checkpoint import masters
from ...checkpoint.native import read_step
from ...checkpoint.saved import known_moments
from .state import Kind
from .tracked_state import Entry


def is_count(value: Any) -> bool:
    """Returns whether the engine can use it as a step count."""
    return isinstance(value, Tensor) and value.dtype == torch.int64 and value.dim() == 0


def move_state(entry: dict[str, Any], device: torch.device | None, count_device: torch.device) -> None:
    """Moves a state to its parameter's device (None: the state stays), and converts the step count to the
    engine's type and device.
    """
    if STEP in entry and not is_count(entry[STEP]):
        entry[STEP] = torch.tensor(read_step(entry[STEP]), dtype=torch.int64, device="cpu")
    for key, value in entry.items():
        if isinstance(value, Tensor):
            target = count_device if key == STEP else device
            if target is not None and value.device != target:
                entry[key] = value.to(target)


def convert_master(entry: dict[str, Any], param: Tensor, kind: Kind, optimizer: str) -> None:
    """Converts master bits of another width. A parameter without master bits loses them, with a warning."""
    bits, dtype = entry.get(MASTER), MASTER_DTYPES.get(kind.master)
    if bits is None or bits.dtype == dtype:
        return
    if dtype is None:
        warnings.warn(
            f"{optimizer}: a {param.dtype} parameter with master={kind.master!r} has no use for its "
            f"{8 * (2 + bits.element_size())}-bit master's further bits: they are dropped",
            stacklevel=2,
        )
        del entry[MASTER]
    else:
        param = param.to(bits.device)  # offloaded bits are in host memory
        entry[MASTER] = masters.residual_of(param, masters.join(param, bits), int(kind.master))


def zero_scales_of_zeroed_codes(tracked: Entry, kind: Kind) -> None:
    """Sets the scales of codes that user code has set to zero to zero, too. RuntimeError if other codes were
    written without their scales, because their values are then unknown.
    """
    for name in tracked.rewritten_codes():
        if name not in known_moments() or _codec.zero_is_zero(known_moments()[name], kind.state):
            continue
        entry = tracked.plain()
        if bool(entry[name].view(torch.uint8).any()):
            raise RuntimeError(
                f"{name} was written to and {name + SCALE} was not: it holds {kind.state} codes, fractions "
                "of their block's scale, and code 0 is not zero. Call reset_state() or zero_() the whole of "
                "it for a fresh start; load_state_dict() takes values"
            )
        entry[name + SCALE].zero_()
    tracked.record_versions()


def reset_state(tracked: Entry) -> None:
    """Sets moments and step count to zero in place."""
    for key, value in tracked.plain().items():
        if isinstance(value, Tensor) and key != MASTER:
            (value.view(torch.uint8) if value.element_size() == 1 else value).zero_()
    tracked.mark_changed(steps=0)
    tracked.record_versions()
