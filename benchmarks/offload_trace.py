"""Iterations of offload.py as a Chrome trace: the model's layers, and what the library notes of its queues.

A layer begins where its forward pass is called, and ends where the next one begins or the pass ends. In a
backward pass with activation checkpointing that call is the one that computes its activations again.
"""

from __future__ import annotations

import itertools
import pathlib
import time
from collections.abc import Callable
from ctypes import c_double
from typing import Any

import makers
import torch


class Marks:
    """Points of the device's work, and what begins there; an empty label begins nothing."""

    def __init__(self, on_gpu: bool) -> None:
        self._on_gpu = on_gpu
        self._at: list[tuple[str, Any]] = []

    def add(self, label: str) -> None:
        if not self._on_gpu:
            self._at.append((label, 1e-3 * time.monotonic_ns()))
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._at.append((label, event))

    def stretches(self) -> list[tuple[str, float, float]]:
        """Label, begin and end, in microseconds of the monotonic clock. Waits for the device."""
        times = [at for _, at in self._at]
        if self._on_gpu:
            now = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            now.record()
            now.synchronize()
            here = 1e-3 * time.monotonic_ns()
            times = [here - 1e3 * at.elapsed_time(now) for at in times]
        pairs = zip(self._at, itertools.pairwise(times), strict=False)
        return [(label, begin, end) for (label, _), (begin, end) in pairs if label]


def layers_of(net: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules of its longest list."""
    lists = [module for module in net.modules() if isinstance(module, torch.nn.ModuleList)]
    return list(max(lists, key=len)) if lists else []


def write_trace(
    folder: pathlib.Path,
    name: str,
    net: torch.nn.Module,
    step: Callable[[], Any],
    finish: Callable[[], None],
    iterations: int = 2,
) -> pathlib.Path:
    library = makers.imported("octavo._abi").library()
    marks = Marks(next(net.parameters()).device.type == "cuda")
    backward = False

    def begins(number: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            marks.add(f"{'backward' if backward else 'forward'} {number}")

        return hook

    def ends(*_: Any) -> None:
        nonlocal backward
        marks.add("backward")  # the loss and what comes before the last layer
        backward = True

    layers = layers_of(net)
    hooks = [layer.register_forward_pre_hook(begins(number)) for number, layer in enumerate(layers)]
    hooks.append(net.register_forward_hook(ends))
    library.octavo_offload_trace(1)
    for _ in range(iterations):
        backward = False
        step()
        marks.add("")
    finish()
    for label, begin, end in marks.stretches():
        library.octavo_offload_trace_note(b"model", label.encode(), c_double(begin), c_double(end))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ("".join(c if c.isalnum() else "_" for c in name) + ".json")
    status = library.octavo_offload_trace_write(str(file).encode())
    library.octavo_offload_trace(0)
    for hook in hooks:
        hook.remove()
    makers.imported("octavo._abi").check(status)
    return file
