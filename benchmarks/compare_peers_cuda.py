"""Compares AdamW on one GPU with torch, bitsandbytes, torchao and flashoptim, in one process.

Workloads are the tensor lists of `octavo bench shapes`, with their rows that have no gradient and with shares
of rows that never have one (--zeros). Sides run one after another, each with its own parameters, gradients
and states. After the warm-up the script prints the median of CUDA events around each step while nothing waits
between the steps, the host's time in the call, and the wall clock of a step on an idle GPU. A slow side does
fewer steps (--time-limit). A peer that cannot be imported is printed and skipped; a peer that fails is
printed with its error. `--device cpu` checks the script without a GPU.

python benchmarks/compare_peers_cuda.py --library build-cuda/lib/liboctavo.so
python benchmarks/compare_peers_cuda.py --workload flat --numel 51200000 --zeros 0,0.9 --side octavo,fused
"""

from __future__ import annotations

import argparse
import logging
import math
import pathlib
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

import harness  # must be first: it adds tests/python to the import path
import peers_cuda as peers
import torch
from makers import PeerMissingError
from peers_cuda_options import DTYPES, parse_options
from peers_cuda_report import Outcome, Result
from report import matching
from stopwatch import Stopwatch, release, times_ms, wait
from workloads import Tensor, Workload, load_tensors

LEAST_REPEATS = 3


def check(device: torch.device) -> None:
    """Compares the library with torch's plain loop on small tensors."""
    shapes = [Tensor((1 << 16,)), Tensor((1000,))]

    def make() -> peers.Params:
        return Workload(shapes, torch.float32, device).params

    plain, mine = make(), make()
    reference = torch.optim.AdamW(
        plain, lr=peers.LR, weight_decay=peers.WEIGHT_DECAY, eps=peers.EPS, foreach=False, fused=False
    )
    octavo_side = peers.OctavoAdamW(mine, "fp32")
    for _ in range(5):
        reference.step()
        octavo_side.step()
    for ours, theirs in zip(mine, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    first = make()
    peers.OctavoAdamW(first, "fp32").step()
    for state in ("8bit", "4bit", "fp8"):  # the first step uses the moments before they are encoded
        other = make()
        peers.OctavoAdamW(other, state).step()
        for ours, theirs in zip(other, first, strict=True):
            if not torch.equal(ours, theirs):
                raise SystemExit(f"octavo {state}: the first step differs from the one with fp32 states")


def warm_up(optimizer: Any, workload: Workload, device: torch.device, steps: int, limit: float) -> float:
    """Runs the steps, each with a new batch if there are batches. Returns the seconds of the last one."""
    began, one = time.perf_counter(), math.inf
    for done in range(steps):
        if workload.changes:
            workload.refill()
            wait(device)
        start = time.perf_counter()
        optimizer.step()
        wait(device)
        one = time.perf_counter() - start
        if done > 0 and time.perf_counter() - began > limit:
            break
    return one


def time_steps(optimizer: Any, result: Result, device: torch.device, repeats: int) -> None:
    result.repeats = repeats
    optimizer.step()  # so that the GPU is busy when the first timed step is queued
    watch, host, alone = Stopwatch(device), list[float](), list[float]()

    def step() -> None:
        start = time.perf_counter()
        optimizer.step()
        host.append(1e3 * (time.perf_counter() - start))

    for _ in range(repeats):
        watch.time(step)
    result.times_ms = watch.ms()
    result.ms_median, result.ms_min = statistics.median(result.times_ms), min(result.times_ms)
    result.host_ms_median = statistics.median(host)
    for _ in range(repeats):
        start = time.perf_counter()
        optimizer.step()
        wait(device)
        alone.append(1e3 * (time.perf_counter() - start))
    result.alone_ms_median = statistics.median(alone)


def run_side(
    side: peers.Side,
    tensors: Sequence[Tensor],
    result: Result,
    device: torch.device,
    options: argparse.Namespace,
) -> None:
    """Fills `result`. Raises PeerMissingError if the peer cannot be imported."""
    try:
        workload = Workload(tensors, DTYPES[result.dtype], device)
        optimizer = side.make(workload.params)
        began = time.perf_counter()
        steps = options.settle if workload.changes else options.warm_up
        one = warm_up(optimizer, workload, device, steps, options.time_limit)
        left = options.time_limit - (time.perf_counter() - began)
        time_steps(optimizer, result, device, max(LEAST_REPEATS, min(options.repeat, int(left / one))))
        numel = sum(param.numel() for param in workload.params)
        result.state_bytes_per_param = peers.state_bytes(optimizer, workload.params) / numel
    except PeerMissingError:
        raise
    except Exception as error:  # a peer may fail in any way, and the others still count
        result.error = (f"{type(error).__name__}: {error}".splitlines() or ["?"])[0]


def copy_gb_per_s(device: torch.device) -> float:
    """Returns the median speed of 20 copies of 1 GiB on the device, counting the bytes read and written."""
    source = torch.ones(1 << (28 if device.type == "cuda" else 20), dtype=torch.float32, device=device)
    target = torch.zeros_like(source)
    ms = times_ms(device, lambda: target.copy_(source), 20, warm_up=6)
    return 2e-6 * source.nbytes / statistics.median(ms)


def main() -> int:
    options = parse_options(__doc__)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    device = torch.device("cpu")
    if options.device == "cuda":
        device = torch.device("cuda", options.gpu)
        torch.cuda.set_device(device)
    check(device)

    sides = {side.name: side for side in peers.sides()}
    chosen = [sides[name] for name in matching(sides, options.side)]
    workloads = {
        name if zeros == 0 else f"{name}, zeros {zeros:g}": load_tensors(
            options.command, name, options.numel, zeros
        )
        for name in options.workload
        for zeros in options.zeros
    }
    outcome = Outcome(harness.device_name(device), [copy_gb_per_s(device)])
    for dtype in options.dtype:
        for workload, tensors in workloads.items():
            for side in chosen:
                if dtype not in side.dtypes or side.name in outcome.missing:
                    continue
                result = Result(side.name, workload, dtype)
                try:
                    run_side(side, tensors, result, device, options)
                    outcome.results.append(result)
                except PeerMissingError as why:
                    outcome.missing[side.name] = result.error = str(why)
                found = result.error or f"{result.ms_median:.3f} ms"
                print(f"{dtype} {workload}: {side.name}: {found}", file=sys.stderr, flush=True)
                if options.json not in (None, "-"):
                    pathlib.Path(options.json).write_text(outcome.json())
                release(device)
    outcome.copy_gb_per_s.append(copy_gb_per_s(device))
    print(
        outcome.json() if options.json == "-" else outcome.text(options.dtype, list(workloads), options.base)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
