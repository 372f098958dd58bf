"""Compares AdamW on the CPU with torch.optim.AdamW(fused=True): every state format, in one run.

Parameters and gradients are fp32, in one flat tensor; both sides use the same number of threads. The results
are checked first, and a wrong result ends the run. Then, for each implementation and format, torch and the
library step in turns. benchmarks/README.md describes the columns.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

import harness  # must be first: it adds tests/python to the import path
import octavo_abi as octavo
import torch
from report import option_parser
from rounding import Bound, Hyper, doubles, ratio

HYPER = Hyper(weight_decay=1e-2)
FIELDS = {"lr": HYPER.lr, "beta1": 0.9, "beta2": 0.999, "eps": HYPER.eps, "weight_decay": HYPER.weight_decay}
STATES = ("fp32", "8bit", "4bit", "fp8")
TORCH_MOVED = 28  # bytes per parameter: reads p, g, m, v; writes p, m, v
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
CHECK_NUMEL, CHECK_STEPS = 100_003, 5


def check(states: list[str], threads: int) -> float:
    """Returns the difference between fp32 states and torch as a share of the derived bound.

    A wrong result ends the script. The first step of a low-bit format must give the same bits as the first
    step with fp32 states, because it starts from the same zeros and uses the moments before they are encoded.
    """
    generator = torch.Generator().manual_seed(0)
    start = 0.02 * torch.randn(CHECK_NUMEL, generator=generator)
    reference, grad = torch.nn.Parameter(start.clone()), torch.zeros(CHECK_NUMEL)
    reference.grad = grad
    optimizer = torch.optim.AdamW([reference], weight_decay=HYPER.weight_decay, foreach=False, fused=False)
    parameters = {state: octavo.Parameter(start.clone(), grad, state) for state in {"fp32", *states}}
    groups = {state: octavo.Group("adamw", [parameter]) for state, parameter in parameters.items()}
    bound, worst = Bound(HYPER), 0.0
    before = [doubles(start), doubles(torch.zeros_like(start)), doubles(torch.zeros_like(start))]
    for step in range(1, CHECK_STEPS + 1):
        grad.copy_(0.01 * torch.randn(CHECK_NUMEL, generator=generator))
        optimizer.step()
        for group in groups.values():
            group.step(step, threads=threads, **FIELDS)
        state = optimizer.state[reference]
        after = [doubles(reference.detach()), doubles(state["exp_avg"]), doubles(state["exp_avg_sq"])]
        bound.adam(step, doubles(grad), tuple(before), tuple(after))
        before = after
        worst = max(worst, ratio(parameters["fp32"].param, after[0], bound.param))
        if step == 1:
            for name, parameter in parameters.items():
                if not torch.equal(parameter.param, parameters["fp32"].param):
                    raise SystemExit(f"{name}: the first step differs from that of fp32 states")
    if worst > 1.0:
        raise SystemExit(f"fp32 states differ from torch by {worst:.2f} times the derived bound")
    return worst


def measure(
    state: str, numel: int, threads: int, repeat: int, after_openmp: bool, dtype: torch.dtype = torch.float32
) -> dict[str, Any]:
    """`dtype` is the type of the library's parameters and gradients; torch's are fp32."""
    torch.manual_seed(1)
    grad = torch.randn(numel).mul_(0.01)
    theirs = torch.nn.Parameter(torch.randn(numel).mul_(0.02))
    theirs.grad = grad
    optimizer = torch.optim.AdamW([theirs], weight_decay=HYPER.weight_decay, fused=True)
    param = theirs.detach().to(dtype, copy=True)
    mine = octavo.Parameter(param, grad.to(dtype), state, allocate=harness.torch_zeros)
    group = octavo.Group("adamw", [mine])
    steps = 0

    def octavo_step() -> None:
        nonlocal steps
        steps += 1
        group.step(steps, threads=threads, **FIELDS)

    sides = {"torch": optimizer.step, "octavo": octavo_step}
    before = {}
    if after_openmp:  # torch's threads may still spin on the CPUs that the step needs
        values = torch.randn(1 << 20)
        sides["after"] = octavo_step
        before["after"] = lambda: torch.add(values, values, out=values)
    times = harness.interleave(sides, repeat, before=before)
    # A step reads p and g, writes p, and reads and writes the state.
    moved = 3 * dtype.itemsize + 2 * mine.state_bytes() / numel
    torch_ms, octavo_ms = (statistics.median(times[side]) for side in ("torch", "octavo"))
    rounds = [a / b for a, b in zip(times["torch"], times["octavo"], strict=True)]
    return {
        "optimizer": "adamw",
        "state": state,
        "param_dtype": NAMES[dtype],
        "grad_dtype": NAMES[dtype],
        "implementation": octavo.implementation(),
        "threads": threads,
        "numel": numel,
        "repeat": repeat,
        "state_bytes_per_param": mine.state_bytes() / numel,
        "moved_bytes_per_param": moved,
        "ms_median": octavo_ms,
        "ms_min": min(times["octavo"]),
        "torch_ms_median": torch_ms,
        "torch_ms_min": min(times["torch"]),
        "speedup": torch_ms / octavo_ms,
        "speedup_min": min(rounds),
        "speedup_max": max(rounds),
        "gb_per_s": 1e-6 * moved * numel / octavo_ms,
        "torch_gb_per_s": 1e-6 * TORCH_MOVED * numel / torch_ms,
        "after_openmp": statistics.median(times["after"]) / octavo_ms if after_openmp else None,
    }


CELLS = {
    "implementation": lambda row: row["implementation"],
    "state": lambda row: row["state"],
    "B/param": lambda row: f"{row['state_bytes_per_param']:.2f}",
    "moved": lambda row: f"{row['moved_bytes_per_param']:.2f}",
    "octavo ms": lambda row: f"{row['ms_median']:.2f}",
    "torch ms": lambda row: f"{row['torch_ms_median']:.2f}",
    "speedup": lambda row: f"{row['speedup']:.2f}x",
    "(by round)": lambda row: f"{row['speedup_min']:.2f} to {row['speedup_max']:.2f}",
    "GB/s": lambda row: f"{row['gb_per_s']:.1f}",
    "% of copy": lambda row: f"{row['percent_of_copy']:.0f}",
    "torch % of copy": lambda row: f"{row['torch_percent_of_copy']:.0f}",
    "after OpenMP": lambda row: f"{row['after_openmp']:.2f}x" if row["after_openmp"] else "-",
}


def text(rows: list[dict[str, Any]], copy: harness.CopySpeed, used: float) -> str:
    first = rows[0]
    lines = [
        f"{harness.cpu_name()}, threads: {first['threads']}",
        f"AdamW, fp32 params and grads, {first['numel']} parameters in one tensor, {first['repeat']} rounds",
        f"torch {torch.__version__} (fused=True; {torch.backends.cpu.get_cpu_capability()} kernels)",
        f"copy: {copy.gb_per_s:.1f} GB/s ({copy.how})",
        f"checked: fp32 states differ from torch by {used:.2f} of the derived bound",
        "",
    ]
    return "\n".join([*lines, harness.table(rows, CELLS)])


def main() -> int:
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("--numel", type=harness.parse_numel, default=1 << 26, help="parameters (default 2^26)")
    add("--threads", type=int, default=harness.available_threads())
    add("--repeat", type=int, default=11, help="timed rounds (default 11)")
    add("--state", default=",".join(STATES), help="state formats, comma-separated")
    add("--implementation", default="", help="the library's, comma-separated (default: the one it chooses)")
    add("--after-openmp", action="store_true", help="also time the step right after a threaded op of torch")
    add("--json", action="store_true", help="print only JSON")
    options = parser.parse_args()
    states = options.state.split(",")

    torch.set_num_threads(options.threads)
    used = 0.0
    copies = [harness.copy_speed(options.threads)]
    rows = []
    for implementation in options.implementation.split(","):
        octavo.check(octavo.library().octavo_force_implementation(implementation.encode()))
        used = max(used, check(states, options.threads))
        rows += [
            measure(state, options.numel, options.threads, options.repeat, options.after_openmp)
            for state in states
        ]
    octavo.check(octavo.library().octavo_force_implementation(b""))
    copies.append(harness.copy_speed(options.threads))
    copy = harness.CopySpeed(statistics.mean(c.gb_per_s for c in copies), copies[0].how)
    for row in rows:
        row["copy_gb_per_s"] = copy.gb_per_s
        row["percent_of_copy"] = 100 * row["gb_per_s"] / copy.gb_per_s
        row["torch_percent_of_copy"] = 100 * row["torch_gb_per_s"] / copy.gb_per_s
    if options.json:
        capability = torch.backends.cpu.get_cpu_capability()
        versions = {"torch": torch.__version__, "torch_cpu_capability": capability}
        result = {"cpu": harness.cpu_name(), **versions, "copy": copy.how, "bound_used": used, "rows": rows}
        print(json.dumps(result, indent=2))
    else:
        print(text(rows, copy, used))
    return 0


if __name__ == "__main__":
    sys.exit(main())
