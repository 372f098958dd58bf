"""The planner of octavo/plan.h: GPUs, the allocator, and the times of kernels and of ranks."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from .. import _abi

# These are in the order of octavo/plan.h.
OWNERS = (
    *("weights", "gradients", "states", "master"),
    *("activations", "workspace", "communication", "batch"),
)
WEIGHTS, GRADIENTS, STATES, MASTER, ACTIVATIONS, WORKSPACE, COMMUNICATION, BATCH = range(8)
FP32, TF32, FP16, BF16, FP8 = range(5)
BOUNDS = ("memory", "arithmetic", "launch")
STREAM, MATMUL = range(2)  # the kinds of work
FREED = -1  # in the place of the bytes of an event: its memory is freed


def kernel(bytes: float, launches: int = 1, **matmul: Any) -> Any:
    """Returns an octavo_plan_kernel. Matmuls have work, precision, batch, rows, columns and inner, too."""
    return _abi.new(_abi.PlanKernel, **{"bytes": bytes, "launches": launches, "batch": 1, **matmul})


class Gpu:
    """A GPU of the library's list, or a part of one."""

    def __init__(self, text: str) -> None:
        self._found = _abi.new(_abi.PlanGpu)
        _abi.check(_abi.library().octavo_plan_find_gpu(str(text).encode(), ctypes.byref(self._found)))
        self.name = self._found.name.decode()
        self.capability = (self._found.compute_major, self._found.compute_minor)
        self.multiprocessors = int(self._found.multiprocessors)
        self.memory, self.context = int(self._found.memory), int(self._found.context)
        self.peer_bandwidth = float(self._found.peer_bandwidth)
        self.host_bandwidth = float(self._found.host_bandwidth)

    def time(self, kernels: Sequence[Any], launch_seconds: float) -> Any:
        """Returns the octavo_plan_step of these kernels."""
        native, step = (_abi.PlanKernel * len(kernels))(*kernels), _abi.new(_abi.PlanStep)
        call = _abi.library().octavo_plan_step_time
        gpu = ctypes.byref(self._found)
        _abi.check(call(gpu, native, len(kernels), launch_seconds, ctypes.byref(step)))
        return step

    def exposed(self, ranks: int, buckets: Sequence[tuple[float, int]], backward: float) -> float:
        """Returns the seconds that all-reduces of (ready, bytes) on one host end after the backward pass."""
        native = (_abi.PlanBucket * len(buckets))(*buckets)
        links = _abi.new(_abi.PlanLinks, ranks=ranks, per_host=max(ranks, 8), latency=5e-6)
        links.within = links.between = self.peer_bandwidth
        seconds, call = ctypes.c_double(), _abi.library().octavo_plan_exposed_seconds
        _abi.check(call(ctypes.byref(links), native, len(buckets), backward, ctypes.byref(seconds)))
        return seconds.value


def simulate(events: Sequence[Sequence[int]], expandable_segments: bool) -> Any:
    """Returns the octavo_plan_memory of events: (number, bytes or FREED, owner)."""
    native = (_abi.PlanEvent * len(events))(*map(tuple, events))
    rules = _abi.new(_abi.PlanRules, expandable_segments=expandable_segments)
    found, call = _abi.new(_abi.PlanMemory), _abi.library().octavo_plan_simulate
    _abi.check(call(native, len(events), ctypes.byref(rules), ctypes.byref(found)))
    return found
