"""The devices that support FP8, warnings about matmuls without FP8, and the workspaces of GPUs."""

from __future__ import annotations

import functools
import logging

import torch
from torch import Tensor

from .. import _abi
from .._engine import device_numbers
from .._warn import warn
from .recipe import Recipe

log = logging.getLogger("octavo.fp8")
_said: set[str] = set()
_workspaces: dict[tuple[int, int], Tensor] = {}


def say_once(message: str) -> None:
    if message not in _said:
        _said.add(message)
        warn(message)


@functools.cache
def _why_not(device: torch.device, recipe: int) -> str:
    """Returns why the device does not support the recipe; empty: it does."""
    if device.type not in ("cpu", "cuda"):
        return f"[fp8] device: got {device.type}, expected cuda"
    try:
        numbers = device_numbers(device)
    except RuntimeError as amd:
        return f"[fp8] device: {amd}"
    status = _abi.library().octavo_fp8_supported(*numbers, recipe)
    return "" if status == 0 else _abi.last_error()


def usable(device: torch.device, recipe: Recipe) -> bool:
    """Returns False if `fallback` allows torch's matmuls on a device without FP8."""
    why = _why_not(device, recipe.numbers.recipe)
    if not why:
        return True
    if recipe.fallback == "error":
        raise _abi.OctavoError(f"{why}; Recipe(fallback='bf16') uses torch's matmuls there")
    say_once(f"{why}: matmuls are torch's, as fallback='bf16' asks")
    return False


def capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def captured_on(stream: int | None) -> bool:
    """Returns capturing() for a stream, without a query for the default stream, which is never captured."""
    return bool(stream) and torch.cuda.is_current_stream_capturing()


def workspace(device: torch.device, stream: int | None, size: int) -> Tensor | None:
    """Returns the buffer that all matmuls of the stream share, because they run in order; None on the CPU."""
    if stream is None:
        return None
    captured = captured_on(stream)
    found = None if captured else _workspaces.get((device.index, stream))
    if found is None:
        found = torch.empty(size, dtype=torch.uint8, device=device)
        # A graph has a separate buffer, because it may be replayed on any stream.
        if not captured:
            _workspaces[device.index, stream] = found
    return found
