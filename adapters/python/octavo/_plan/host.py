"""Measures how fast this machine's host launches kernels: steps of small batches wait for it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

LAUNCH_SECONDS = 1e-5  # per kernel, on a host that is not measured
BATCH = (2, 16, 64)  # too small to keep a GPU busy
_WARM = 3  # the first steps load libraries
_ENOUGH = 0.4  # seconds, because the speed of a shared host varies
_found: dict[torch.device, float] = {}


def layers() -> nn.Module:
    """Returns layers like those of other models. torch's random numbers are not changed."""
    with torch.random.fork_rng([]):
        one = nn.TransformerEncoderLayer(
            BATCH[-1], 4, 256, 0.0, batch_first=True, norm_first=True, device="cpu", dtype=torch.float32
        )
        return nn.TransformerEncoder(one, 4, enable_nested_tensor=False)


def launch_seconds(device: torch.device, launches: Callable[[nn.Module], float]) -> float:
    """Returns the seconds per kernel of a forward and backward pass. `launches` counts a module's kernels. It
    measures once per device of a process, and returns LAUNCH_SECONDS if it cannot (out of memory).
    """
    if device not in _found:
        try:
            _found[device] = _step_seconds(device) / launches(layers())
        except RuntimeError:
            return LAUNCH_SECONDS
    return _found[device]


def _step_seconds(device: torch.device) -> float:
    model, batch = layers().to(device), torch.ones(BATCH, dtype=torch.float32, device=device)
    seconds: list[float] = []
    while len(seconds) <= _WARM or sum(seconds[_WARM:]) < _ENOUGH:
        _wait_for(device)
        begin = time.perf_counter()
        with torch.autocast(device.type, dtype=torch.bfloat16), torch.enable_grad():
            loss = model(batch).float().square().mean()
        loss.backward()
        seconds.append(time.perf_counter() - begin)
        model.zero_grad()
    _wait_for(device)
    return statistics.median(seconds[_WARM:])


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
