"""AdamW on the CPU as an offloaded step runs it: bf16 weights and gradients, beside torch's fused fp32 AdamW.

That is what torch steps where its states are on the CPU: fp32 throughout, 28 bytes moved per parameter. Sides
take turns within one run, over one flat tensor; results are checked by compare_torch_cpu.py. A machine's
threads are given as a list, because an offloaded step leaves a core for the framework.

python benchmarks/cpu_step.py --threads 16,15
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import harness  # first: it finds the modules of tests/python
import torch
from compare_torch_cpu import STATES, check, measure

GOAL = {"8bit": 0.5}  # of torch's time, with 16 threads


def threads_of(text: str) -> list[int]:
    counts = [int(part) for part in text.split(",")]
    if min(counts) < 1:
        raise argparse.ArgumentTypeError(f"got {min(counts)}, expected at least 1")
    return counts


def line(row: dict[str, Any]) -> list[str]:
    share = [1 / row[key] for key in ("speedup", "speedup_max", "speedup_min")]
    goal = GOAL.get(row["state"]) if row["threads"] == 16 else None
    return [
        str(row["threads"]),
        row["state"],
        f"{row['moved_bytes_per_param']:.2f}",
        f"{row['ms_median']:.2f}",
        f"{row['torch_ms_median']:.2f}",
        f"{share[0]:.2f} ({share[1]:.2f} to {share[2]:.2f})",
        f"{row['gb_per_s']:.1f}",
        f"{row['torch_gb_per_s']:.1f}",
        f"{goal:.2f}" if goal else "",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    every = harness.available_threads()
    add("--numel", type=harness.parse_numel, default=1 << 26, help="parameters (default 2^26)")
    add("--threads", type=threads_of, default=[every], help=f"comma-separated (default {every})")
    add("--repeat", type=int, default=21, help="timed rounds (default 21)")
    add("--state", default=",".join(STATES), help="state formats, comma-separated")
    add("--json", help="write the results there as well")
    options = parser.parse_args()
    rows = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        for state in options.state.split(","):
            check([state], threads)
            rows.append(measure(state, options.numel, threads, options.repeat, False, torch.bfloat16))
    print(f"{harness.cpu_name()}, torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()})")
    print(f"{options.numel} parameters, {options.repeat} rounds; ours: {rows[0]['implementation']}, bf16\n")
    header = [
        "threads",
        "state",
        "moved",
        "ms",
        "torch ms",
        "of torch (by round)",
        "GB/s",
        "torch GB/s",
        "goal",
    ]
    print(harness.table(header, [line(row) for row in rows]))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"cpu": harness.cpu_name(), "torch": torch.__version__, "rows": rows}, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
