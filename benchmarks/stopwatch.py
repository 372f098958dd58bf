"""Times calls: with CUDA events on a GPU, where nothing waits between the calls, else with the wall clock."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        wait(device)
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """Returns the peak of torch's allocator; 0 on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def release(device: torch.device) -> None:
    """Frees the memory of deleted tensors."""
    gc.collect()
    if device.type == "cuda":
        wait(device)
        torch.cuda.empty_cache()


class Stopwatch:
    """Times one call after another. ms() waits for the GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[Any, Any]] = []

    def mark(self) -> Any:
        """Returns the present point of the device's work, for ms_between()."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def ms_between(self, start: Any, end: Any) -> float:
        """The GPU must have reached both marks."""
        if self._device.type == "cuda":
            return float(start.elapsed_time(end))
        return 1e3 * float(end - start)

    def time(self, work: Callable[[], Any]) -> None:
        start = self.mark()
        work()
        self._marks.append((start, self.mark()))

    def ms(self) -> list[float]:
        wait(self._device)
        return [self.ms_between(start, end) for start, end in self._marks]


def times_ms(device: torch.device, work: Callable[[], Any], repeat: int, warm_up: int = 2) -> list[float]:
    watch = Stopwatch(device)
    for turn in range(warm_up + repeat):
        work() if turn < warm_up else watch.time(work)
    return watch.ms()


def median_us(device: torch.device, work: Callable[[], Any], repeat: int) -> float:
    return 1e3 * statistics.median(times_ms(device, work, repeat))
