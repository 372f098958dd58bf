"""The kernels of one AdamW step, each alone, by torch's profiler.

`octavo bench optimizer` queues step behind step, and the GPU may come to its power limit. Here a pause
follows every step, so that the clock stays high, and gaps between kernels are not counted.

    OCTAVO_LIBRARY=build-cuda/lib/liboctavo.so python3 benchmarks/kernel_times.py --state 4bit,4bit-rank1
"""

from __future__ import annotations

import argparse
import pathlib
import time
from collections.abc import Iterable

import harness  # noqa: F401  (the way to the package)
import torch
import workloads
from torch.profiler import ProfilerActivity, profile

from octavo import optim  # isort: skip

ROOT = pathlib.Path(__file__).resolve().parents[1]
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
PAUSE = 0.02  # seconds


def totals(kernels: Iterable[tuple[str, float]], steps: int) -> list[tuple[str, float, float]]:
    """Name, microseconds of a step and launches of a step; the longest first."""
    times: dict[str, list[float]] = {}
    for name, microseconds in kernels:
        times.setdefault(name, []).append(microseconds)
    rows = [(name, sum(each) / steps, len(each) / steps) for name, each in times.items()]
    return sorted(rows, key=lambda row: -row[1])


def measure(
    tensors: list[workloads.Tensor], dtype: torch.dtype, state: str, steps: int
) -> list[tuple[str, float]]:
    """The kernels of so many steps: name and microseconds."""
    work = workloads.Workload(tensors, dtype, torch.device("cuda"))
    optimizer = optim.AdamW(work.params, lr=1e-4, state=state)
    for _ in range(10):
        optimizer.step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        for _ in range(steps):
            optimizer.step()
            torch.cuda.synchronize()
            time.sleep(PAUSE)
    return [
        (event.name, event.time_range.elapsed_us())
        for event in seen.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--command", type=pathlib.Path, default=ROOT / "build-cuda/bin/octavo")
    parser.add_argument("--state", default="8bit,fp8,4bit,4bit-rank1")
    parser.add_argument("--shape", default="parakeet", help="one of `octavo bench shapes`")
    parser.add_argument("--param-dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--repeat", type=int, default=10, help="steps")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: kernels are timed on a GPU only")
    tensors = workloads.load_tensors(args.command, args.shape, 1 << 26, 0.0)
    for state in args.state.split(","):
        rows = totals(measure(tensors, DTYPES[args.param_dtype], state, args.repeat), args.repeat)
        print(f"{state}, {args.shape}, {args.param_dtype}: {sum(row[1] for row in rows):.1f} us a step")
        for name, microseconds, launches in rows:
            print(f"{microseconds:9.1f} us, {launches:.1f} launches: {name[:150]}", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
