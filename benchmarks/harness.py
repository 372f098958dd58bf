"""Shared by the scripts that compare optimizers: import paths, timing in turns, copy bandwidth, tables.

Times are wall clock times. The sides take turns (a, b, a, b ...), so that the machine's noise affects all of
them equally, and the median over the rounds is reported. All buffers come from torch's allocator.
"""

from __future__ import annotations

import os
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from report import ROOT, octavo_command, run_octavo

# tests/python has octavo_abi, rounding and peers; adapters/python has octavo.
sys.path[:0] = [str(ROOT / "tests/python"), str(ROOT / "adapters/python")]

Side = Callable[[], Any]


def available_threads() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def parse_numel(text: str) -> int:
    """Parses an element count: 67108864, 2^26, or 64M (binary)."""
    base, power, exponent = text.partition("^")
    if power:
        return int(int(base) ** int(exponent))
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def torch_zeros(byte_count: int) -> torch.Tensor:
    """Allocates the buffers of octavo_abi.Parameter."""
    return torch.zeros(byte_count, dtype=torch.uint8)


def interleave(
    sides: Mapping[str, Side], repeat: int, warm_up: int = 2, before: Mapping[str, Side] | None = None
) -> dict[str, list[float]]:
    """Returns the milliseconds of each side in each round.

    A pause between the sides lets the threads of the previous side sleep. `before[side]` runs after the pause
    and is not timed.
    """
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(warm_up + repeat):
        for name, side in sides.items():
            time.sleep(0.005)
            if before and name in before:
                before[name]()
            start = time.perf_counter()
            side()
            elapsed = 1e3 * (time.perf_counter() - start)
            if turn >= warm_up:
                times[name].append(elapsed)
    return times


@dataclass(frozen=True)
class CopySpeed:
    gb_per_s: float  # counts the bytes read and the bytes written
    how: str


def copy_speed(threads: int, repeat: int = 5) -> CopySpeed:
    """Runs the octavo command (1 GiB each side, best of memcpy and streaming stores); without it, torch."""
    command = octavo_command()
    if command.exists():
        arguments = ("--optimizer=adamw", "--state=fp32", "--shape=flat", "--numel=1048576")
        counts = (f"--threads={threads}", f"--repeat={repeat}")
        rows = run_octavo(command, "bench", "optimizer", *arguments, *counts)["rows"]
        return CopySpeed(rows[0]["copy_gb_per_s"], "octavo bench: best of memcpy and streaming stores")
    source = torch.zeros(1 << 30, dtype=torch.uint8).fill_(1)
    target = torch.zeros_like(source).fill_(2)
    times = interleave({"copy": lambda: target.copy_(source)}, repeat)["copy"]
    gb_per_s = 2e-6 * source.numel() / statistics.median(times)
    return CopySpeed(
        gb_per_s, f"torch copy_ with ordinary stores, because there is no {command.name} command"
    )


def cpu_name() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def device_name(device: torch.device | str) -> str:
    device = torch.device(device)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table with aligned columns: the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        return "  ".join([row[0].ljust(widths[0]), *cells]).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def table(rows: Sequence[Any], cells: Mapping[str, Callable[[Any], str]]) -> str:
    """Returns a table with a column for each entry of `cells`: its title, and the text of a row's cell."""
    return columns(list(cells), [[cell(row) for cell in cells.values()] for row in rows])
