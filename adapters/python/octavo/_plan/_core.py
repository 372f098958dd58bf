"""What octavo/plan.h knows, through the C ABI: GPUs, the allocator, the times of kernels and of ranks."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from typing import Any

from .. import _abi

# In the order of octavo/plan.h.
OWNERS = (
    *("weights", "gradients", "states", "master"),
    *("activations", "workspace", "communication", "batch"),
)
WEIGHTS, GRADIENTS, STATES, MASTER, ACTIVATIONS, WORKSPACE, COMMUNICATION, BATCH = range(8)
FP32, TF32, FP16, BF16, FP8 = range(5)
BOUNDS = ("memory", "arithmetic", "launch")
STREAM, PRODUCT = range(2)
GIVEN_BACK = -1  # the bytes of an event


@dataclasses.dataclass(slots=True)
class Kernel:
    """One kernel of a GPU; `batch` to `inner` are those of a product."""

    bytes: float = 0.0
    work: int = STREAM
    precision: int = FP32
    batch: int = 1
    rows: int = 0
    columns: int = 0
    inner: int = 0
    launches: int = 1


@dataclasses.dataclass(frozen=True)
class Memory:
    allocated: int
    reserved: int
    owners: dict[str, int]
    rounding: int
    peak_event: int


@dataclasses.dataclass(frozen=True)
class StepTime:
    seconds: float
    gpu_seconds: float
    host_seconds: float
    by_bound: dict[str, float]


class Gpu:
    """A GPU of the library's list, or a part of it."""

    def __init__(self, text: str) -> None:
        self._found = _abi.new(_abi.PlanGpu)
        _abi.check(_abi.library().octavo_plan_find_gpu(str(text).encode(), ctypes.byref(self._found)))
        self.name = self._found.name.decode()
        self.capability = (self._found.compute_major, self._found.compute_minor)
        self.multiprocessors = int(self._found.multiprocessors)
        self.memory, self.context = int(self._found.memory), int(self._found.context)
        self.peer_bandwidth = float(self._found.peer_bandwidth)
        self.host_bandwidth = float(self._found.host_bandwidth)

    def time(self, kernels: Sequence[Kernel], launch_seconds: float) -> StepTime:
        native = (_abi.PlanKernel * len(kernels))()
        for slot, kernel in zip(native, kernels, strict=True):
            slot.struct_size = ctypes.sizeof(slot)
            slot.work, slot.precision, slot.bytes = kernel.work, kernel.precision, kernel.bytes
            slot.batch, slot.rows, slot.columns = kernel.batch, kernel.rows, kernel.columns
            slot.inner, slot.launches = kernel.inner, kernel.launches
        step = _abi.new(_abi.PlanStep)
        _abi.check(
            _abi.library().octavo_plan_step_time(
                ctypes.byref(self._found), native, len(kernels), launch_seconds, ctypes.byref(step)
            )
        )
        by_bound = dict(zip(BOUNDS, step.by_bound, strict=True))
        return StepTime(step.seconds, step.gpu_seconds, step.host_seconds, by_bound)

    def exposed(self, ranks: int, buckets: Sequence[tuple[float, int]], backward: float) -> float:
        """Seconds that all-reduces of (ready, bytes) end after the backward pass, on one host."""
        native = (_abi.PlanBucket * len(buckets))()
        for slot, (ready, size) in zip(native, buckets, strict=True):
            slot.ready, slot.bytes = ready, size
        links = _abi.new(_abi.PlanLinks, ranks=ranks, per_host=max(ranks, 8), latency=5e-6)
        links.within = links.between = self.peer_bandwidth
        seconds = ctypes.c_double()
        _abi.check(
            _abi.library().octavo_plan_exposed_seconds(
                ctypes.byref(links), native, len(buckets), backward, ctypes.byref(seconds)
            )
        )
        return seconds.value


def simulate(events: Sequence[Sequence[int]], expandable_segments: bool) -> Memory:
    """The allocator's use of memory for events of (id, bytes or GIVEN_BACK, owner)."""
    native = (_abi.PlanEvent * len(events))()
    for slot, (number, size, owner) in zip(native, events, strict=True):
        slot.id, slot.bytes, slot.owner = number, size, owner
    rules = _abi.new(_abi.PlanRules, expandable_segments=expandable_segments)
    found: Any = _abi.new(_abi.PlanMemory)
    _abi.check(
        _abi.library().octavo_plan_simulate(native, len(events), ctypes.byref(rules), ctypes.byref(found))
    )
    owners = dict(zip(OWNERS, found.owners, strict=True))
    return Memory(found.allocated, found.reserved, owners, found.rounding, found.peak_event)
