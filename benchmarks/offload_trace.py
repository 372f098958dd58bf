"""Writes iterations of offload.py as a Chrome trace: the model's layers and the library's queues.

A layer begins when its forward pass is called, and ends when the next layer begins or the pass ends. In a
backward pass with activation checkpointing, a layer begins when its activations are computed again.
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
from stopwatch import Stopwatch


class Marks:
    """Labelled points of the device's work: a label names what begins there; an empty label ends it."""

    def __init__(self, device: torch.device) -> None:
        self._watch, self._on_gpu = Stopwatch(device), device.type == "cuda"
        self._marks: list[tuple[str, Any]] = []

    def add(self, label: str) -> None:
        self._marks.append((label, self._watch.mark()))

    def intervals(self) -> list[tuple[str, float, float]]:
        """Returns label, begin and end in microseconds of the monotonic clock. Waits for the device."""
        now = self._watch.mark()
        if self._on_gpu:
            now.synchronize()
        now_us = 1e-3 * time.monotonic_ns()
        times = [now_us - 1e3 * self._watch.ms_between(mark, now) for _, mark in self._marks]
        pairs = zip(self._marks, itertools.pairwise(times), strict=False)
        return [(label, begin, end) for (label, _), (begin, end) in pairs if label]


def layers_of(net: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the modules of the longest ModuleList."""
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
    marks = Marks(next(net.parameters()).device)
    backward = False

    def begins(number: int) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            marks.add(f"{'backward' if backward else 'forward'} {number}")

        return hook

    def ends(*_: Any) -> None:
        nonlocal backward
        marks.add("backward")  # the loss, and the modules after the last layer
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
    for label, begin, end in marks.intervals():
        library.octavo_offload_trace_note(b"model", label.encode(), c_double(begin), c_double(end))
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ("".join(c if c.isalnum() else "_" for c in name) + ".json")
    status = library.octavo_offload_trace_write(str(file).encode())
    library.octavo_offload_trace(0)
    for hook in hooks:
        hook.remove()
    makers.imported("octavo._abi").check(status)
    return file
