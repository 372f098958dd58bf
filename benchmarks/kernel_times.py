"""Times each kernel of an AdamW step with torch's profiler.

`octavo bench optimizer` queues one step after another, and the GPU may reach its power limit. This script
pauses after every step, so that the clock rate stays high, and does not count the gaps between kernels.

    OCTAVO_LIBRARY=build-cuda/lib/liboctavo.so python3 benchmarks/kernel_times.py --state 4bit,4bit-rank1
"""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterable

import harness  # noqa: F401  must be first: it adds the package of this tree to the import path
import torch
import workloads
from report import ROOT, option_parser
from torch.profiler import ProfilerActivity, profile

from octavo import optim  # isort: skip

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
PAUSE = 0.02  # seconds


def totals(kernels: Iterable[tuple[str, float]], steps: int) -> list[tuple[str, float, float]]:
    """Returns name, microseconds per step and launches per step, the longest first."""
    times: dict[str, list[float]] = {}
    for name, microseconds in kernels:
        times.setdefault(name, []).append(microseconds)
    rows = [(name, sum(each) / steps, len(each) / steps) for name, each in times.items()]
    return sorted(rows, key=lambda row: -row[1])


def measure(
    tensors: list[workloads.Tensor], dtype: torch.dtype, state: str, steps: int
) -> list[tuple[str, float]]:
    """Returns name and microseconds of every kernel of these steps."""
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
    parser = option_parser(__doc__)
    parser.add_argument("--command", type=pathlib.Path, default=ROOT / "build-cuda/bin/octavo")
    parser.add_argument("--state", default="8bit,fp8,4bit,4bit-rank1")
    parser.add_argument("--shape", default="parakeet", help="a shape of `octavo bench shapes`")
    parser.add_argument("--param-dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--repeat", type=int, default=10, help="timed steps")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device: kernels can be timed only on a GPU")
    tensors = workloads.load_tensors(args.command, args.shape, 1 << 26, 0.0)
    for state in args.state.split(","):
        rows = totals(measure(tensors, DTYPES[args.param_dtype], state, args.repeat), args.repeat)
        print(f"{state}, {args.shape}, {args.param_dtype}: {sum(row[1] for row in rows):.1f} us a step")
        for name, microseconds, launches in rows:
            print(f"{microseconds:9.1f} us, {launches:.1f} launches: {name[:150]}", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
