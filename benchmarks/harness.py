"""What the comparison scripts share: interleaved timing, copy bandwidth, tables, the way to tests/python.

Times are of wall clock, sides take turns (a, b, a, b …) so that the machine's noise falls on all of them,
and the median over the rounds is reported. Every buffer is torch's, for all sides.
"""

from __future__ import annotations

import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [
    str(ROOT / "tests/python"),
    str(ROOT / "adapters/python"),
]  # octavo_abi, rounding, peers; octavo

Side = Callable[[], Any]


def available_threads() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def parse_numel(text: str) -> int:
    """An element count: 67108864, 2^26, or 64M (binary)."""
    base, power, exponent = text.partition("^")
    if power:
        return int(int(base) ** int(exponent))
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    return int(text[:-1]) * units[text[-1]] if text[-1:] in units else int(text)


def torch_zeros(byte_count: int) -> torch.Tensor:
    """An allocator for octavo_abi.Parameter."""
    return torch.zeros(byte_count, dtype=torch.uint8)


def interleave(
    sides: Mapping[str, Side], repeat: int, warm_up: int = 2, before: Mapping[str, Side] | None = None
) -> dict[str, list[float]]:
    """Milliseconds of each side in each round. A pause between sides lets the threads of one go to sleep.

    What `before` has for a side runs right before it, after the pause, and is not timed.
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
    gb_per_s: float  # bytes read and written
    how: str


def octavo_command() -> pathlib.Path:
    return pathlib.Path(os.environ.get("OCTAVO_COMMAND", str(ROOT / "build/bin/octavo")))


def copy_speed(threads: int, repeat: int = 5) -> CopySpeed:
    """By the octavo command (1 GiB each side, best of memcpy and streaming stores); without it, by torch."""
    command = octavo_command()
    if command.exists():
        arguments = [
            "bench",
            "optimizer",
            "--optimizer",
            "adamw",
            "--state",
            "fp32",
            "--shape",
            "flat",
            "--numel",
            "1048576",
            "--json",
        ]
        options = ["--threads", str(threads), "--repeat", str(repeat)]
        output = subprocess.run(
            [str(command), *arguments, *options],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ).stdout
        rows = json.loads(output)["rows"]
        return CopySpeed(rows[0]["copy_gb_per_s"], "octavo bench: best of memcpy and streaming stores")
    source = torch.zeros(1 << 30, dtype=torch.uint8).fill_(1)
    target = torch.zeros_like(source).fill_(2)
    times = interleave({"copy": lambda: target.copy_(source)}, repeat)["copy"]
    gb_per_s = 2e-6 * source.numel() / statistics.median(times)
    return CopySpeed(gb_per_s, f"torch copy_, since there is no {command.name} command: ordinary stores")


def cpu_name() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns in line; the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])
