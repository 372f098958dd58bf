"""The memory that the engine uses on each device of a step: workspace, staging memory, norm and report.

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
from .norms import combine, copy_to_device, device_for_group, new_norms, reduce_over_ranks

PartKey = tuple[torch.device, tuple[Any, ...]]  # a device, and the process groups that share gradients

_ALIGNMENT = 256  # of staging memory


@dataclasses.dataclass(slots=True)
class DeviceBuffer:
    """The buffers of one device."""

    device: torch.device
    norm: Tensor  # of all gradients; with gradient release, of the step before
    numbers: tuple[int, int]
    workspace: Tensor
    stream: int | None  # the workspace was allocated on it
    report: Tensor | None = None
    staging: Tensor | None = None  # states in host memory pass through it
    staging_stream: int | None = None  # the staging memory was allocated on it


class DeviceBuffers:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.defer = False  # steps return before the current stream is ordered after them
        self.by_device: dict[torch.device, DeviceBuffer] = {}
        self.gpus: list[int] = []  # their indexes
        self.filled: Any = None  # what the arguments were filled with; None: the next step fills them
        self._native: Any = None
        self._args = _abi.new(_abi.EngineArgs)
        self.args = ctypes.byref(self._args)
        self._norms: dict[PartKey, Tensor] = {}
        self._groups: list[tuple[Any, ...]] = [()]  # the index is the engine's number of the part
        self._norm_keys: Sequence[PartKey] | None = None
        self._norm_parts: Any = None  # the engine's structs for these keys
        self._adder = _adder(weakref.ref(self))
        self._args.add_sums = ctypes.cast(self._adder, ctypes.c_void_p)

    def part_number(self, groups: tuple[Any, ...]) -> int:
        """Returns the engine's number for gradients that these process groups share."""
        for number, known in enumerate(self._groups):
            if len(known) == len(groups) and all(a is b for a, b in zip(known, groups, strict=True)):
                return number
        self._groups.append(groups)
        return len(self._groups) - 1

    def add_devices(self, devices: Iterable[torch.device]) -> None:
        new = set(devices) - self.by_device.keys()
        if not new and self._args.device_count == len(self.by_device):
            return
        for device in new:
            norm, empty = new_norms(device), torch.empty(0, dtype=torch.uint8, device=device)
            self.by_device[device] = DeviceBuffer(device, norm, device_numbers(device), empty, None)
        self.gpus = [device.index for device in self.by_device if device.type != "cpu"]
        self.filled = self._norm_keys = None
        self._native = (_abi.EngineDevice * len(self.by_device))()
        for slot, buffer in zip(self._native, self.by_device.values(), strict=True):
            slot.struct_size = ctypes.sizeof(slot)
            slot.device_kind, slot.device_index = buffer.numbers
        self._args.devices, self._args.device_count = ctypes.addressof(self._native), len(self.by_device)

    def reports(self) -> list[Tensor]:
        return [buffer.report for buffer in self.by_device.values() if buffer.report is not None]

    def fill_args(
        self, skip_nonfinite: bool, parts: Sequence[PartKey], scalars: tuple[Any, Any], capturing: bool
    ) -> list[Tensor]:
        """Fills in the arguments that may differ from step to step: streams, memory, the norm, GradScaler's
        scale and found-inf. Returns tensors that must live until the calls are made, and for as long as a
        graph that is captured.
        """
        self._args.skip_nonfinite, self._args.defer, alive = skip_nonfinite, self.defer, []
        everywhere = len(parts) > 1 or any(groups for _, groups in parts)
        for slot, buffer in zip(self._native, self.by_device.values(), strict=True):
            if buffer.device.type == "cpu":
                self._args.threads = torch.get_num_threads()
            slot.stream = stream_of(buffer.device)
            workspace = self._workspace(buffer, slot.stream, capturing)
            slot.workspace, slot.workspace_bytes = workspace.data_ptr(), workspace.numel()
            alive.append(workspace)
            self._ensure_staging(buffer, slot)
            for name, scalar in zip(("loss_scale", "found_inf"), scalars, strict=True):
                if scalar is not None:
                    # GradScaler updates its own in place, maybe before the step reads it.
                    scalar = scalar.to(device=buffer.device, dtype=torch.float32, copy=self.defer)
                    alive.append(scalar)
                setattr(slot, name, None if scalar is None else scalar.data_ptr())
            has_norm = everywhere or (buffer.device, ()) in parts
            slot.norm = buffer.norm.data_ptr() if has_norm else None
            if skip_nonfinite and buffer.report is None:
                buffer.report = torch.zeros(2, dtype=torch.int64, device=buffer.device)
            slot.report = buffer.report.data_ptr() if skip_nonfinite and buffer.report is not None else None
        self.filled = None
        return alive

    def _workspace(self, buffer: DeviceBuffer, stream: int | None, capturing: bool) -> Tensor:
        """Returns memory of torch's allocator, so its tools see it. A graph that is captured has its own."""
        size = self._engine.workspace_bytes(*buffer.numbers)
        if capturing:
            return torch.empty(size, dtype=torch.uint8, device=buffer.device)
        if buffer.workspace.numel() < size:
            buffer.workspace = torch.empty(size, dtype=torch.uint8, device=buffer.device)
            buffer.stream = stream
        elif stream != buffer.stream and size:  # the allocator must know that another stream uses it
            buffer.workspace.record_stream(torch.cuda.current_stream(buffer.device))
        return buffer.workspace

    def _ensure_staging(self, buffer: DeviceBuffer, slot: Any) -> None:
        """Gives the device the memory that its streamed states pass through."""
        size = self._engine.staging_bytes(*buffer.numbers)
        if buffer.staging is not None and buffer.staging.numel() >= size + _ALIGNMENT:
            size = buffer.staging.numel() - _ALIGNMENT
        elif size:
            if buffer.staging is not None:
                for what in (WEIGHTS, GRADIENTS):
                    self._engine.wait(None, what, buffer.device)
                record_use(buffer.staging, buffer.staging_stream)
            buffer.staging_stream = slot.stream
            buffer.staging = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=buffer.device)
            if buffer.device.type == "cuda":
                # Work of the current stream may still use this memory. The engine's queues do not wait.
                torch.cuda.current_stream(buffer.device).synchronize()
        if buffer.staging is not None:
            at = buffer.staging.data_ptr()
            slot.staging, slot.staging_bytes = at + -at % _ALIGNMENT, size

    def add_sums(self, sums: Tensor, part: int) -> None:
        """Sums what the algorithm has measured over the ranks that share the tensors, in place."""
        for group in self._groups[part]:
            moved = sums.to(device_for_group(sums.device, group))
            all_reduce(moved, group)
            sums.copy_(moved)

    def compute_norm(self, keys: Sequence[PartKey]) -> Tensor:
        """Writes the norm of all begun gradients to every device, and returns the first device's. `keys` are
        the parts that the gradients belong to; those that ranks share are in one order on every rank.
        """
        total = self.by_device[keys[0][0]].norm
        joins = len(keys) > 1 or bool(keys[0][1])
        norms = [self._norms.setdefault(key, new_norms(key[0])) for key in keys] if joins else [total]

        def join() -> None:
            self.write_norm([reduce_over_ranks(norm, key[1]) for norm, key in zip(norms, keys, strict=True)])

        if self._norm_keys != keys:
            self._norm_parts, self._norm_keys = self._native_parts(keys, norms), keys
        self._engine.norm(self.args, self._norm_parts, join if joins else None)
        return total

    def _native_parts(self, keys: Sequence[PartKey], norms: Sequence[Tensor]) -> Any:
        native = (_abi.EngineNormPart * len(keys))()
        for slot, (device, groups), norm in zip(native, keys, norms, strict=True):
            slot.struct_size, slot.part = ctypes.sizeof(slot), self.part_number(groups)
            (slot.device_kind, slot.device_index), slot.out = device_numbers(device), norm.data_ptr()
        return native

    def write_norm(self, parts: Sequence[Tensor]) -> None:
        """Writes the norm of all parts to every device."""
        for buffer in self.by_device.values():
            moved = copy_to_device(parts, buffer.device)
            buffer.norm.copy_(moved[0] if len(moved) == 1 else combine(moved))

    def finish_release(self, devices: Sequence[torch.device]) -> Tensor | None:
        """Ends a step of gradient release. Returns the norm of its gradients, which were on these devices."""
        totals = [self._norms.setdefault((device, ()), new_norms(device)) for device in devices]

        def join() -> None:
            combined = [combine(copy_to_device(totals, total.device)) for total in totals]
            for total, norm in zip(totals, combined, strict=True):
                total.copy_(norm)

        parts = self._native_parts([(device, ()) for device in devices], totals)
        self._engine.finish(self.args, parts, join if len(totals) > 1 else None)
        return totals[0] if totals else None


def _adder(buffers: weakref.ref[DeviceBuffers]) -> Any:
    """Returns the engine's callback. It does not keep the buffers alive."""

    def add(_: Any, kind: int, index: int, part: int, at: int, count: int) -> int:
        own = buffers()
        assert own is not None
        device = torch.device("cuda", index) if kind else torch.device("cpu")
        return own._engine.caught(lambda: own.add_sums(_doubles(at, count, device), part))

    return _abi.EngineAddSums(add)


def _doubles(at: int, count: int, device: torch.device) -> Tensor:
    """Returns memory of the engine as a tensor."""
    if device.type == "cpu":
        return torch.frombuffer((ctypes.c_double * count).from_address(at), dtype=torch.float64)
    numbers = {"shape": (count,), "typestr": "<f8", "data": (at, False), "version": 3}
    held = type("Numbers", (), {"__cuda_array_interface__": numbers})()
    return torch.as_tensor(held, dtype=torch.float64, device=device)
