"""Compares AdamW with low-bit states on the CPU with torchao and bitsandbytes, in one run.

The first part is parity: 2 and 50 steps of each side with its own states, and 50 steps that start from the
peer's states, after which the codes are compared. The second part is the time per step; the sides take
turns. A peer that is not installed is printed and skipped.
"""

from __future__ import annotations

import json
import logging
import statistics
import sys
import warnings
from collections.abc import Callable
from typing import Any

import harness  # must be first: it adds tests/python to the import path
import octavo_abi as octavo
import peers
import torch
from report import option_parser

SHAPE, STEPS = (64, 512), 50
SETTING = peers.Setting()
STATES = ("fp32", "8bit", "4bit", "fp8")


def own_states(name: str, state: str, compiled: bool) -> dict[str, Any]:
    """Steps each side with its own states and the same gradients; compares after 2 and after 50 steps."""
    generator = torch.Generator().manual_seed(20)
    initial = 0.1 * torch.randn(SHAPE, generator=generator)
    both = peers.make_comparison(name, state, initial, SETTING, compiled)
    out: dict[str, Any] = {}
    left = torch.zeros(SHAPE, dtype=torch.bool)  # elements whose codes differ after the first step
    for step in range(1, STEPS + 1):
        assert both.param.grad is not None
        both.param.grad.copy_(0.01 * torch.randn(SHAPE, generator=generator))
        both.peer.step()
        both.group.step(step, **SETTING.octavo())
        error = (both.param.detach() - both.mine.param).abs()
        if step == 1:
            left = torch.from_numpy(both.codes_differ()).view(SHAPE)
            out["codes_differ_1"] = int(left.sum())
        if step in (2, STEPS):
            close = torch.isclose(both.mine.param, both.param.detach(), rtol=1e-5, atol=1e-5)
            out[f"max_error_{step}"] = error.max().item()
            out[f"mean_error_{step}"] = error.mean().item()
            out[f"beyond_1e-5_{step}"] = int((~close).sum())
            out[f"beyond_1e-5_{step}_equal_codes"] = int((~close & ~left).sum())
    for slot, moment in enumerate("mv"):
        theirs, mine = peers.ranks(both.peer.raw(slot)[0], state), peers.ranks(both.mine.codes[slot], state)
        out[f"codes_differ_{moment}"] = float((theirs != mine).mean())
    return out


def synced_states(name: str, state: str, compiled: bool) -> dict[str, Any]:
    """Steps both sides from the peer's state, 50 times."""
    initial = 0.02 * torch.randn(SHAPE, generator=torch.Generator().manual_seed(21))
    both = peers.make_comparison(name, state, initial, SETTING, compiled)
    for grad in peers.gradients(SHAPE, STEPS, seed=22):
        assert both.param.grad is not None
        both.param.grad.copy_(grad)
        both.step()
    reports = dict(zip("mv", both.reports, strict=True))
    return {
        "param_error_over_bound": both.param_ratio,
        "codes": {moment: vars(report) for moment, report in reports.items()},
        "lines": {moment: report.line() for moment, report in reports.items()},
    }


def parity(pairs: list[tuple[str, str]], compiled: bool) -> list[dict[str, Any]]:
    rows = []
    for name, state in pairs:
        compile_it = compiled and name == "torchao"
        row: dict[str, Any] = {"peer": name, "state": state, "elements": SHAPE[0] * SHAPE[1]}
        row |= own_states(name, state, compile_it) | synced_states(name, state, compile_it)
        rows.append(row)
    return rows


Sides = dict[str, Callable[[], Any]]


def sides(pairs: list[tuple[str, str]], numel: int, threads: int) -> tuple[Sides, dict[str, float]]:
    """Returns each side's step over its own copy of the parameters, and its state bytes per parameter."""
    torch.manual_seed(23)
    initial, grad = torch.randn(numel).mul_(0.02), torch.randn(numel).mul_(0.01)
    steps: Sides = {}
    bytes_per_param: dict[str, float] = {}

    def fresh() -> torch.nn.Parameter:
        param = torch.nn.Parameter(initial.clone())
        param.grad = grad
        return param

    steps["torch fused fp32"] = torch.optim.AdamW([fresh()], fused=True).step
    bytes_per_param["torch fused fp32"] = 8.0

    def octavo_step(state: str) -> Callable[[], Any]:
        parameter = octavo.Parameter(initial.clone(), grad, state, allocate=harness.torch_zeros)
        group = octavo.Group("adamw", [parameter])
        bytes_per_param[f"octavo {state}"] = parameter.state_bytes() / numel
        count = 0

        def step() -> None:
            nonlocal count
            count += 1
            group.step(count, threads=threads, **SETTING.octavo())

        return step

    for state in STATES:
        steps[f"octavo {state}"] = octavo_step(state)
    for name, state in pairs:
        peer = peers.MAKERS[name](fresh(), state, SETTING, name == "torchao")
        steps[f"{name} {state}"] = peer.step
        bits = {"8bit": 8, "4bit": 4, "fp8": 8}[state]
        bytes_per_param[f"{name} {state}"] = 2 * (bits / 8 + 4 / peers.BLOCK[state])
    return steps, bytes_per_param


def speed(pairs: list[tuple[str, str]], numel: int, threads: int, repeat: int) -> list[dict[str, Any]]:
    steps, bytes_per_param = sides(pairs, numel, threads)
    times = harness.interleave(steps, repeat)
    medians = {side: statistics.median(values) for side, values in times.items()}
    rows = []
    for side, values in times.items():
        state = side.rsplit(" ", 1)[1]
        row = {"side": side, "state": state, "numel": numel, "threads": threads, "repeat": repeat}
        row |= {"ms_median": medians[side], "ms_min": min(values)}
        row |= {"state_bytes_per_param": bytes_per_param[side]}
        rows.append({**row, "octavo_speedup": medians[side] / medians[f"octavo {state}"]})
    return rows


CELLS = {
    "side": lambda row: row["side"],
    "B/param": lambda row: f"{row['state_bytes_per_param']:.2f}",
    "ms median": lambda row: f"{row['ms_median']:.2f}",
    "ms min": lambda row: f"{row['ms_min']:.2f}",
    "octavo is faster by": lambda row: f"{row['octavo_speedup']:.1f}x",
}


def text(found: list[dict[str, Any]], timed: list[dict[str, Any]], absent: list[str], threads: int) -> str:
    head = f"{harness.cpu_name()}, {octavo.implementation()}, threads: {threads}, torch {torch.__version__}"
    lines = [head, *absent]
    if found:
        lines += ["", f"Parity, {found[0]['elements']} parameters, AdamW, lr 1e-3, weight decay 1e-2:"]
    for row in found:
        far, equal_codes = row["beyond_1e-5_2"], row["beyond_1e-5_2_equal_codes"]
        of_bound = f"{row['param_error_over_bound']:.2f} of the bound"
        lines += [
            f"{row['peer']} {row['state']}",
            f"  2 steps, own states: max |dp| {row['max_error_2']:.1e}, {far} beyond 1e-5 + 1e-5|p|"
            f" ({equal_codes} of them had equal codes after the first step;"
            f" {row['codes_differ_1']} elements had different ones)",
            f"  {STEPS} steps, own states: max |dp| {row[f'max_error_{STEPS}']:.1e},"
            f" mean {row[f'mean_error_{STEPS}']:.1e};"
            f" codes that differ: m {row['codes_differ_m']:.2%}, v {row['codes_differ_v']:.2%}",
            f"  {STEPS} steps, from the peer's states: params within {of_bound}",
            *(f"    {moment}: {line}" for moment, line in row["lines"].items()),
        ]
    if timed:
        lines += ["", f"Time per step in ms, {timed[0]['numel']} fp32 parameters in one tensor, in turns:"]
        lines.append(harness.table(timed, CELLS))
    return "\n".join(lines)


def main() -> int:
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("--numel", type=harness.parse_numel, default=1 << 22, help="parameters (default 2^22)")
    add("--threads", type=int, default=harness.available_threads())
    add("--repeat", type=int, default=9, help="timed rounds (default 9)")
    add("--eager-parity", action="store_true", help="do not compile torchao for the parity part")
    add("--skip", choices=["parity", "speed"], help="skip this part")
    add("--json", action="store_true", help="print only JSON")
    options = parser.parse_args()
    if options.numel % 256:
        parser.error("--numel: expected a multiple of 256, because torchao does not quantize other tensors")

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # torchao reports its CUDA extensions as missing
    torch.set_num_threads(options.threads)
    absent = [reason for peer in peers.MAKERS if (reason := peers.missing(peer))]
    pairs = [(name, state) for name, state in peers.PAIRS if not peers.missing(name)]
    found = [] if options.skip == "parity" else parity(pairs, not options.eager_parity)
    timed = [] if options.skip == "speed" else speed(pairs, options.numel, options.threads, options.repeat)
    if options.json:
        result = {"cpu": harness.cpu_name(), "absent": absent, "parity": found, "speed": timed}
        print(json.dumps(result, indent=2))
    else:
        print(text(found, timed, absent, options.threads))
    return 0


if __name__ == "__main__":
    sys.exit(main())
