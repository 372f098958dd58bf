"""Times AdamW on the CPU with bf16 weights and gradients, and torch's fused fp32 AdamW, in turns.

Offloaded states are stepped this way. torch keeps fp32 throughout when its states are on the CPU, and moves
28 bytes per parameter. Both sides step one flat tensor; compare_torch_cpu.py checks the results. --threads is
a list, because an offloaded step may leave a core for the framework.

python benchmarks/cpu_step.py --threads 16,15
"""

from __future__ import annotations

import sys

import harness  # must be first: it adds tests/python to the import path
import torch
from compare_torch_cpu import STATES, check, measure
from report import counts, option_parser, write_json

CELLS = {
    "threads": lambda row: str(row["threads"]),
    "state": lambda row: row["state"],
    "moved": lambda row: f"{row['moved_bytes_per_param']:.2f}",
    "ms": lambda row: f"{row['ms_median']:.2f}",
    "torch ms": lambda row: f"{row['torch_ms_median']:.2f}",
    "of torch (by round)": lambda row: (
        f"{1 / row['speedup']:.2f} ({1 / row['speedup_max']:.2f} to {1 / row['speedup_min']:.2f})"
    ),
    "GB/s": lambda row: f"{row['gb_per_s']:.1f}",
    "torch GB/s": lambda row: f"{row['torch_gb_per_s']:.1f}",
}


def main() -> int:
    parser = option_parser(__doc__)
    add = parser.add_argument
    every = harness.available_threads()
    add("--numel", type=harness.parse_numel, default=1 << 26, help="parameters (default 2^26)")
    add("--threads", type=counts, default=[every], help=f"comma-separated (default {every})")
    add("--repeat", type=int, default=21, help="timed rounds (default 21)")
    add("--state", default=",".join(STATES), help="state formats, comma-separated")
    add("--json", help="also write the results to this file")
    options = parser.parse_args()
    rows = []
    for threads in options.threads:
        torch.set_num_threads(threads)
        for state in options.state.split(","):
            check([state], threads)
            rows.append(measure(state, options.numel, threads, options.repeat, False, torch.bfloat16))
    print(f"{harness.cpu_name()}, torch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()})")
    implementation = rows[0]["implementation"]
    print(f"{options.numel} parameters, {options.repeat} rounds; octavo: {implementation}, bf16\n")
    print(harness.table(rows, CELLS))
    write_json(options.json, {"cpu": harness.cpu_name(), "torch": torch.__version__, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
