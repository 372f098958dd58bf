"""What the engine works with on each device of a step: stream, workspace, the norm of all gradients, the
report; and how norms of several devices and ranks become one.

A norm is three doubles as the core writes them: l2, the maximum, and (as int64) the count of non-finite
elements. It stays on its device, and the host does not wait for it.
"""

from __future__ import annotations

import ctypes
import dataclasses
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _abi
from .._collectives import all_reduce
from .._engine import GRADIENTS, WEIGHTS, Engine, device_numbers, record_use, stream_of

PartKey = tuple[torch.device, tuple[Any, ...]]  # a device, and the process groups that share gradients

_ALIGNMENT = 256  # of staging memory


def new_norms(device: torch.device, *shape: int) -> Tensor:
    return torch.zeros((*shape, 3), dtype=torch.float64, device=device)


@dataclasses.dataclass(slots=True)
class DeviceBuffer:
    """One device."""

    device: torch.device
    norm: Tensor  # of all gradients; with gradient release, of the step before
    numbers: tuple[int, int]
    workspace: Tensor
    stream: int | None  # whose memory the workspace is
    report: Tensor | None = None
    staging: Tensor | None = None  # what states in host memory come through
    staging_stream: int | None = None  # on which it was allocated


class DeviceBuffers:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.defer = False  # steps return before the current stream is ordered behind them
        self.by_device: dict[torch.device, DeviceBuffer] = {}
        self._native: Any = None
        self._args = _abi.new(_abi.EngineArgs)
        self.args = ctypes.byref(self._args)
        self._parts: dict[PartKey, Tensor] = {}  # a buffer each
        self._groups: list[tuple[Any, ...]] = [()]  # by the number of their part
        self._adder = _adder(weakref.ref(self))
        self._args.add_sums = ctypes.cast(self._adder, ctypes.c_void_p)

    def part_number(self, groups: tuple[Any, ...]) -> int:
        """The engine's number for gradients that these process groups share."""
        for number, known in enumerate(self._groups):
            if len(known) == len(groups) and all(a is b for a, b in zip(known, groups, strict=True)):
                return number
        self._groups.append(groups)
        return len(self._groups) - 1

    def add_devices(self, devices: Iterable[torch.device]) -> None:
        """Makes room for devices that are new."""
        new = set(devices) - self.by_device.keys()
        if not new and self._args.device_count == len(self.by_device):
            return
        for device in new:
            empty = torch.empty(0, dtype=torch.uint8, device=device)
            self.by_device[device] = DeviceBuffer(
                device, new_norms(device), device_numbers(device), empty, None
            )
        self._native = (_abi.EngineDevice * len(self.by_device))()
        for slot, side in zip(self._native, self.by_device.values(), strict=True):
            slot.struct_size = ctypes.sizeof(slot)
            slot.device_kind, slot.device_index = side.numbers
        self._args.devices, self._args.device_count = ctypes.addressof(self._native), len(self.by_device)

    def reports(self) -> list[Tensor]:
        return [side.report for side in self.by_device.values() if side.report is not None]

    def fill_args(
        self, guard: bool, parts: Sequence[PartKey], scalars: tuple[Any, Any], capturing: bool
    ) -> list[Tensor]:
        """Fills in what may differ from step to step: the parts of the norm that is taken, GradScaler's scale
        and found-inf. Returns tensors that must live until the calls are made; longer, where a graph is
        captured.
        """
        self._args.guard, self._args.defer, alive = guard, self.defer, []
        everywhere = len(parts) > 1 or any(groups for _, groups in parts)
        for slot, side in zip(self._native, self.by_device.values(), strict=True):
            if side.device.type == "cpu":
                self._args.threads = torch.get_num_threads()
            slot.stream = stream_of(side.device)
            workspace = self._workspace(side, slot.stream, capturing)
            slot.workspace, slot.workspace_bytes = workspace.data_ptr(), workspace.numel()
            alive.append(workspace)
            self._ensure_staging(side, slot)
            for name, scalar in zip(("loss_scale", "found_inf"), scalars, strict=True):
                if scalar is not None:
                    # GradScaler updates its own in place, maybe before the step reads it.
                    scalar = scalar.to(device=side.device, dtype=torch.float32, copy=self.defer)
                    alive.append(scalar)
                setattr(slot, name, None if scalar is None else scalar.data_ptr())
            has_norm = everywhere or (side.device, ()) in parts
            slot.norm = side.norm.data_ptr() if has_norm else None
            if guard and side.report is None:
                side.report = torch.zeros(2, dtype=torch.int64, device=side.device)
            slot.report = side.report.data_ptr() if guard and side.report is not None else None
        return alive

    def _workspace(self, side: DeviceBuffer, stream: int | None, capturing: bool) -> Tensor:
        """Memory of torch's allocator, so that its tools see it. A graph that is captured has its own."""
        size = self._engine.workspace_bytes(*side.numbers)
        if capturing:
            return torch.empty(size, dtype=torch.uint8, device=side.device)
        if side.workspace.numel() < size:
            side.workspace = torch.empty(size, dtype=torch.uint8, device=side.device)
            side.stream = stream
        elif stream != side.stream and size:  # the allocator is told that another stream uses it
            side.workspace.record_stream(torch.cuda.current_stream(side.device))
        return side.workspace

    def _ensure_staging(self, side: DeviceBuffer, slot: Any) -> None:
        """Gives the device what streamed states need of its memory."""
        size = self._engine.staging_bytes(*side.numbers)
        if side.staging is not None and side.staging.numel() >= size + _ALIGNMENT:
            size = side.staging.numel() - _ALIGNMENT
        elif size:
            if side.staging is not None:
                for what in (WEIGHTS, GRADIENTS):
                    self._engine.wait(None, what, side.device)
                record_use(side.staging, side.staging_stream)
            side.staging_stream = slot.stream
            side.staging = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=side.device)
            if side.device.type == "cuda":
                # The current stream may still use this memory for what had it before. Queues do not wait.
                torch.cuda.current_stream(side.device).synchronize()
        if side.staging is not None:
            at = side.staging.data_ptr()
            slot.staging, slot.staging_bytes = at + -at % _ALIGNMENT, size

    def add_sums(self, sums: Tensor, part: int) -> None:
        """What the algorithm has measured of tensors that ranks share, summed over these, in place."""
        for group in self._groups[part]:
            moved = sums.to(device_for_group(sums.device, group))
            all_reduce(moved, group)
            sums.copy_(moved)

    # --- Norms ------------------------------------------------------------------------------------

    def compute_norm(self, keys: Sequence[PartKey]) -> Tensor:
        """The norm over all begun gradients, on every device; the first device's. `keys` are the parts that
        they belong to, those that ranks share in their order on every rank.
        """
        if len(keys) == 1 and not keys[0][1]:
            self._engine.norm(self.args, self._native_parts(keys, [self.by_device[keys[0][0]].norm]), None)
        else:
            buffers = [self._parts.setdefault(key, new_norms(key[0])) for key in keys]

            def join() -> None:
                self.write_norm(
                    [reduce_over_ranks(part, key[1]) for part, key in zip(buffers, keys, strict=True)]
                )

            self._engine.norm(self.args, self._native_parts(keys, buffers), join)
        return self.by_device[keys[0][0]].norm

    def _native_parts(self, keys: Sequence[PartKey], buffers: Sequence[Tensor]) -> Any:
        native = (_abi.EngineNormPart * len(keys))()
        for slot, (device, groups), buffer in zip(native, keys, buffers, strict=True):
            slot.struct_size, slot.part = ctypes.sizeof(slot), self.part_number(groups)
            (slot.device_kind, slot.device_index), slot.out = device_numbers(device), buffer.data_ptr()
        return native

    def write_norm(self, parts: Sequence[Tensor]) -> None:
        """Writes the norm of all parts to every device."""
        for side in self.by_device.values():
            moved = copy_to_device(parts, side.device)
            side.norm.copy_(moved[0] if len(moved) == 1 else combine(moved))

    def finish_release(self, devices: Sequence[torch.device]) -> Tensor | None:
        """Ends a step of gradient release; the norm of its gradients, which were on these devices."""
        totals = [self._parts.setdefault((device, ()), new_norms(device)) for device in devices]

        def join() -> None:
            whole = [combine(copy_to_device(totals, total.device)) for total in totals]
            for total, norm in zip(totals, whole, strict=True):
                total.copy_(norm)

        parts = self._native_parts([(device, ()) for device in devices], totals)
        self._engine.finish(self.args, parts, join if len(totals) > 1 else None)
        return totals[0] if totals else None


def copy_to_device(parts: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """The parts there. The host reads its own at once, so it waits for those of a GPU."""
    return [part.to(device, non_blocking=device.type != "cpu") for part in parts]


def reduce_over_ranks(part: Tensor, groups: tuple[Any, ...]) -> Tensor:
    """The norm of a part over all ranks that share it."""
    for group in groups:
        part = reduce_over_group(part, group)
    return part


def combine(parts: Sequence[Tensor]) -> Tensor:
    """Combines several norms into the norm of all their gradients."""
    out = torch.empty_like(parts[0])
    stacked = torch.stack(list(parts))
    out[0] = stacked[:, 0].square().sum().sqrt()
    out[1] = stacked[:, 1].amax()
    out.view(torch.int64)[2] = stacked.view(torch.int64)[:, 2].sum()
    return out


def device_for_group(device: torch.device, group: Any) -> torch.device:
    """The device, or the group's own, for shards that are offloaded to the CPU while the group moves a GPU's
    memory alone.
    """
    types = [each.type for each in group._device_types]
    return device if device.type in types else torch.device(types[0])


def _adder(sides: weakref.ref[DeviceBuffers]) -> Any:
    """The engine's callback. It does not keep the sides alive."""

    def add(_: Any, kind: int, index: int, part: int, at: int, count: int) -> int:
        own = sides()
        assert own is not None
        device = torch.device("cuda", index) if kind else torch.device("cpu")
        return own._engine.caught(lambda: own.add_sums(_doubles(at, count, device), part))

    return _abi.AddSums(add)


def _doubles(at: int, count: int, device: torch.device) -> Tensor:
    """Memory of the engine as a tensor."""
    if device.type == "cpu":
        return torch.frombuffer((ctypes.c_double * count).from_address(at), dtype=torch.float64)
    numbers = {"shape": (count,), "typestr": "<f8", "data": (at, False), "version": 3}
    held = type("Numbers", (), {"__cuda_array_interface__": numbers})()
    return torch.as_tensor(held, dtype=torch.float64, device=device)


def reduce_over_group(part: Tensor, group: Any) -> Tensor:
    """The norm of all ranks' parts."""
    import torch.distributed as dist

    device = device_for_group(part.device, group)
    sums = torch.stack([part[0].square(), part.view(torch.int64)[2].double()]).to(device)
    largest = part[1].clone().to(device)
    all_reduce(sums, group)
    all_reduce(largest, group, dist.ReduceOp.MAX)
    out = torch.empty_like(part)
    out[0], out[1] = sums[0].sqrt(), largest
    out.view(torch.int64)[2] = sums[1].long()
    return out
