"""AdamW on one GPU: the library against torch, bitsandbytes, torchao and flashoptim, in one process.

Workloads are the tensor lists of `octavo bench shapes`, and `lora`: thousands of tiny ones. Sides run one
after another, each over parameters, gradients and states of its own: warm-ups, then the median of CUDA events
around each step while nothing waits between steps, the host's time in the call, and the wall clock of a step
alone (the GPU idle before it, waited for after it). A slow side does fewer of them (--time-limit). A peer
that cannot be imported is named and left out; one that fails is named with its error.

python benchmarks/compare_peers_cuda.py --library build-cuda/lib/liboctavo.so
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import math
import os
import pathlib
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import harness  # first: it finds the modules of tests/python
import octavo_abi as octavo
import peers_cuda as peers
import torch
from peers_cuda_report import Outcome, Result

WORKLOADS = ("flat", "gpt2", "parakeet", "lora")
LORA = [[8, 1024], [1024, 8]] * 1536  # adapters of rank 8: 3,072 tensors of 8,192 elements
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
LEAST_REPEATS = 3

Shapes = Sequence[Sequence[int]]


def load_shapes(command: pathlib.Path, workload: str, numel: int) -> list[list[int]]:
    if workload == "lora":
        return LORA
    arguments = [str(command), "bench", "shapes", workload, "--json", "--numel", str(numel)]
    done = subprocess.run(arguments, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr.strip() or f"{command} failed")
    return [tensor["shape"] for tensor in json.loads(done.stdout)["tensors"]]


def make_params(shapes: Shapes, dtype: torch.dtype, device: torch.device) -> peers.Params:
    generator = torch.Generator(device).manual_seed(1)
    params = []
    for shape in shapes:
        values = [torch.empty(*shape, dtype=dtype, device=device) for _ in range(2)]
        for tensor, deviation in zip(values, (0.02, 0.002), strict=True):
            tensor.normal_(0.0, deviation, generator=generator)
        param = torch.nn.Parameter(values[0])
        param.grad = values[1]
        params.append(param)
    return params


def check(device: torch.device) -> None:
    """The library against torch's plain loop on a small tensor, before anything is timed."""
    shapes = [[1 << 16], [1000]]
    plain, mine = (make_params(shapes, torch.float32, device) for _ in range(2))
    reference = torch.optim.AdamW(
        plain, lr=peers.LR, weight_decay=peers.WEIGHT_DECAY, eps=peers.EPS, foreach=False, fused=False
    )
    octavo_side = peers.OctavoAdamW(mine, "fp32")
    for _ in range(5):
        reference.step()
        octavo_side.step()
    for ours, theirs in zip(mine, plain, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    first = make_params(shapes, torch.float32, device)
    peers.OctavoAdamW(first, "fp32").step()
    for state in ("8bit", "4bit", "fp8"):  # the first step does not see the rounding of states
        other = make_params(shapes, torch.float32, device)
        peers.OctavoAdamW(other, state).step()
        for ours, theirs in zip(other, first, strict=True):
            if not torch.equal(ours, theirs):
                raise SystemExit(f"octavo {state}: the first step differs from fp32 states: a bug")


def time_steps(optimizer: Any, result: Result, warm_ups: int, repeat: int, limit: float) -> None:
    began = time.perf_counter()
    one = math.inf  # seconds of the last warm-up
    for done in range(warm_ups):
        start = time.perf_counter()
        optimizer.step()
        torch.cuda.synchronize()
        one = time.perf_counter() - start
        if done > 0 and time.perf_counter() - began > limit:
            break
    left = limit - (time.perf_counter() - began)
    result.repeats = max(LEAST_REPEATS, min(repeat, int(left / one)))
    events = [
        [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        for _ in range(result.repeats)
    ]
    optimizer.step()  # so that the GPU is busy when the first timed step is queued
    host: list[float] = []
    for start_event, end_event in events:
        start_event.record()
        start = time.perf_counter()
        optimizer.step()
        host.append(1e3 * (time.perf_counter() - start))
        end_event.record()
    torch.cuda.synchronize()
    result.times_ms = [start_event.elapsed_time(end_event) for start_event, end_event in events]
    result.ms_median, result.ms_min = statistics.median(result.times_ms), min(result.times_ms)
    result.host_ms_median = statistics.median(host)
    alone: list[float] = []
    for _ in range(result.repeats):
        start = time.perf_counter()
        optimizer.step()
        torch.cuda.synchronize()
        alone.append(1e3 * (time.perf_counter() - start))
    result.alone_ms_median = statistics.median(alone)


def release() -> None:
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def run_side(side: peers.Side, shapes: Shapes, result: Result, options: argparse.Namespace) -> None:
    """Fills `result`; raises PeerMissingError where the peer is not there."""
    try:
        params = make_params(shapes, DTYPES[result.dtype], torch.device("cuda", options.gpu))
        optimizer = side.make(params)
        time_steps(optimizer, result, options.warm_up, options.repeat, options.time_limit)
        numel = sum(param.numel() for param in params)
        result.state_bytes_per_param = peers.state_bytes(optimizer, params) / numel
    except peers.PeerMissingError:
        raise
    except Exception as error:  # a peer may fail in any way, and the others still count
        result.error = (f"{type(error).__name__}: {error}".splitlines() or ["?"])[0]


def copy_gb_per_s(device: torch.device) -> float:
    """Of 1 GiB on the device, bytes read and written counted: median of 20."""
    source = torch.ones(1 << 28, dtype=torch.float32, device=device)
    target = torch.zeros_like(source)

    class Copy:
        def step(self) -> None:
            target.copy_(source)

    result = Result("copy", "", "")
    time_steps(Copy(), result, 5, 20, 10.0)
    assert result.ms_median is not None
    return 2e-6 * source.nbytes / result.ms_median


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])

    def some_of(known: Sequence[str]) -> Callable[[str], list[str]]:
        def parse(text: str) -> list[str]:
            given = text.split(",")
            if unknown := [name for name in given if name not in known]:
                raise argparse.ArgumentTypeError(f"got {unknown[0]!r}, expected some of {', '.join(known)}")
            return given

        return parse

    add = parser.add_argument
    add("--library", type=pathlib.Path, help="liboctavo.so with CUDA (default: OCTAVO_LIBRARY, build/lib/)")
    add("--command", type=pathlib.Path, help="the octavo command (default: ../bin/octavo beside the library)")
    add("--workload", type=some_of(WORKLOADS), default=list(WORKLOADS), help="some of " + ",".join(WORKLOADS))
    add("--dtype", type=some_of(list(DTYPES)), default=list(DTYPES), help="params and grads: bf16,fp32")
    add("--side", help="only sides whose name contains one of these, comma-separated: octavo,torch fused")
    add("--numel", type=harness.parse_numel, default=1 << 28, help="elements of flat (default 2^28)")
    add("--repeat", type=int, default=20, help="timed steps (default 20)")
    add("--warm-up", type=int, default=5, help="steps before them (default 5)")
    add("--time-limit", type=float, default=60.0, help="seconds for a side and workload (default 60)")
    add("--gpu", type=int, default=0, help="index of the GPU (default 0)")
    add(
        "--json",
        nargs="?",
        const="-",
        help="print JSON, nothing else; with a file: write it there as it grows",
    )
    options = parser.parse_args()
    if options.library:
        os.environ["OCTAVO_LIBRARY"] = str(options.library)
    options.library = octavo.library_path()
    options.command = options.command or options.library.resolve().parent.parent / "bin" / "octavo"
    for path in (options.library, options.command):
        if not path.exists():
            parser.error(f"{path} does not exist: build it, or name another with --library or --command")
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU")
    if options.repeat < 1 or options.warm_up < 1:
        parser.error("--repeat and --warm-up: expected at least 1")
    return options


def main() -> int:
    options = parse_options()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    device = torch.device("cuda", options.gpu)
    torch.cuda.set_device(device)
    check(device)

    wanted = options.side.split(",") if options.side else [""]
    chosen = [side for side in peers.sides() if any(text in side.name for text in wanted)]
    shapes = {each: load_shapes(options.command, each, options.numel) for each in options.workload}
    outcome = Outcome(torch.cuda.get_device_properties(device).name, [copy_gb_per_s(device)])
    for dtype in options.dtype:
        for workload in options.workload:
            for side in chosen:
                if dtype not in side.dtypes or side.name in outcome.missing:
                    continue
                result = Result(side.name, workload, dtype)
                try:
                    run_side(side, shapes[workload], result, options)
                    outcome.results.append(result)
                except peers.PeerMissingError as why:
                    outcome.missing[side.name] = result.error = str(why)
                found = result.error or f"{result.ms_median:.3f} ms"
                print(f"{dtype} {workload}: {side.name}: {found}", file=sys.stderr, flush=True)
                if options.json not in (None, "-"):
                    pathlib.Path(options.json).write_text(outcome.json())
                release()
    outcome.copy_gb_per_s.append(copy_gb_per_s(device))
    print(outcome.json() if options.json == "-" else outcome.text(options.dtype, options.workload))
    return 0


if __name__ == "__main__":
    sys.exit(main())
