"""Milliseconds of calls: by CUDA events on a GPU, where nothing waits in between, else by the wall clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Stopwatch:
    """Times one call after another; ms() waits for the GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[Any, Any]] = []

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def time(self, work: Callable[[], Any]) -> None:
        start = self._mark()
        work()
        self._marks.append((start, self._mark()))

    def ms(self) -> list[float]:
        wait(self._device)
        if self._device.type == "cuda":
            return [start.elapsed_time(end) for start, end in self._marks]
        return [1e3 * (end - start) for start, end in self._marks]
