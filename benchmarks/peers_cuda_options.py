"""The options of compare_peers_cuda.py."""

from __future__ import annotations

import argparse
import math
import os
import pathlib

import harness
import octavo_abi as octavo
import peers_cuda as peers
import torch
from report import option_parser, some_of

WORKLOADS = ("flat", "gpt2", "parakeet", "lora", "gpt2-embedding", "moe", "vit-g")
DEFAULT_WORKLOADS = WORKLOADS[:4]
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
SETTLE = 300  # warm-up steps of a workload whose batches reach different rows


def shares(text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [math.nan]
    if not all(0 <= share <= 1 for share in values):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected shares from 0 to 1 such as 0,0.5,0.9")
    return values


def parse_options(description: str | None) -> argparse.Namespace:
    parser = option_parser(description)
    add = parser.add_argument
    workloads = f"some of {','.join(WORKLOADS)} (default: the first {len(DEFAULT_WORKLOADS)})"
    settle = f"warm-up steps if every step has another batch of tokens or experts (default {SETTLE})"
    add("--library", type=pathlib.Path, help="liboctavo.so with CUDA (default: OCTAVO_LIBRARY, build/lib/)")
    add(
        "--command", type=pathlib.Path, help="the octavo command (default: ../bin/octavo next to the library)"
    )
    add("--workload", type=some_of(WORKLOADS), default=list(DEFAULT_WORKLOADS), help=workloads)
    add("--zeros", type=shares, default=[0.0], help="shares of rows that never have a gradient: 0,0.5,0.9")
    add("--dtype", type=some_of(list(DTYPES)), default=list(DTYPES), help="params and grads: bf16,fp32")
    add("--side", help="only sides whose name contains one of these, comma-separated: octavo,torch fused")
    add("--base", default=peers.BASE, help=f"the side that others are divided by (default {peers.BASE!r})")
    add("--numel", type=harness.parse_numel, default=1 << 28, help="elements of flat (default 2^28)")
    add("--repeat", type=int, default=20, help="timed steps (default 20)")
    add("--warm-up", type=int, default=5, help="steps before the timed ones (default 5)")
    add("--settle", type=int, default=SETTLE, help=settle)
    add("--time-limit", type=float, default=60.0, help="seconds for a side and workload (default 60)")
    add("--gpu", type=int, default=0, help="index of the GPU (default 0)")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="cpu checks the script; times mean nothing")
    add("--json", nargs="?", const="-", help="print only JSON; with a file: write it there after every side")
    options = parser.parse_args()
    if options.library:
        os.environ["OCTAVO_LIBRARY"] = str(options.library)
    options.library = octavo.library_path()
    options.command = options.command or options.library.resolve().parent.parent / "bin" / "octavo"
    for path in (options.library, options.command):
        if not path.exists():
            parser.error(f"{path} does not exist: build it, or name another with --library or --command")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU")
    if options.base not in (names := [side.name for side in peers.sides()]):
        parser.error(f"--base: got {options.base!r}, expected one of {', '.join(names)}")
    if min(options.repeat, options.warm_up, options.settle) < 1:
        parser.error("--repeat, --warm-up and --settle: expected at least 1")
    return options
