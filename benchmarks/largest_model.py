"""Measures the GPU memory of transformers of 1 to 8 billion parameters, for each place of the states.

Layers of width 4096 in plain torch, everything in bf16, activation checkpointing, one sequence of 512 tokens,
so that weights, gradients and states take nearly all memory. Each cell runs in its own process and has the
peak memory of a training step and its time. The second table has the largest model that fits in a given
memory, interpolated linearly between the measured sizes.

PYTHONPATH=adapters/python python benchmarks/largest_model.py --billions 1,2,4,8 --json found.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import pairwise
from typing import Any

import harness  # must be first: it adds the package of this tree to the import path
import makers
import torch
from offload_rows import OFFLOAD, RELEASE, Setup, octavo
from processes import RowError, forwarded, run_row
from report import markdown, markdown_head, numbers, option_parser, select, write_json
from stopwatch import peak_bytes
from torch import nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint
from vit_model import Block

from offload import finish

LR = 1e-5
SIZES = {"width": 4096, "heads": 32, "vocabulary": 32000, "tokens": 512}
ROWS = {
    "torch fused": Setup(makers.torch_fused),
    "octavo 8bit": Setup(makers.octavo("8bit")),
    "octavo 4bit + gradient_release": Setup(makers.octavo("4bit", **RELEASE)),
    "stream 8bit + attach": octavo("8bit", "stream", True),
    "stream 8bit + gradient_release": octavo("8bit", "stream", **RELEASE),
    "host 8bit + offload_gradients + attach": octavo("8bit", "host", True, **OFFLOAD),
}


class Transformer(nn.Module):
    def __init__(self, layers: int, options: argparse.Namespace) -> None:
        super().__init__()
        self.embedding = nn.Embedding(options.vocabulary, options.width)
        self.blocks = nn.ModuleList(Block(options.width, options.heads) for _ in range(layers))
        self.norm = nn.LayerNorm(options.width)
        self.head = nn.Linear(options.width, options.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def layers_for(params: float, options: argparse.Namespace) -> int:
    """Returns the number of layers, at least one, whose model is nearest to this number of parameters."""
    with torch.device("meta"):
        one, two = (sum(p.numel() for p in Transformer(n, options).parameters()) for n in (1, 2))
    return max(1, round((params - (2 * one - two)) / (two - one)))


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    setup, device = ROWS[name], torch.device(options.device)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with device:
            net = Transformer(layers_for(1e9 * options.size, options), options)
    finally:
        torch.set_default_dtype(torch.float32)
    optimizer = setup.make(net.parameters(), LR)
    if setup.attach:
        optimizer.attach(net)
    tokens = torch.randint(options.vocabulary, (1, options.tokens + 1), device=device)

    def step() -> torch.Tensor:
        loss = fn.cross_entropy(net(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    first = step().item()
    finish(optimizer, device)
    start = time.perf_counter()
    losses = [step() for _ in range(options.repeat)]
    finish(optimizer, device)
    return {
        "params": sum(param.numel() for param in net.parameters()),
        "seconds": (time.perf_counter() - start) / options.repeat,
        "peak_gb": peak_bytes(device) / 1e9,
        "losses": [first, losses[-1].item()],
    }


def fits(found: list[tuple[float, float]], memory: float) -> str:
    """Returns the billions of parameters that take this many GB, from ascending pairs of (billions, GB)."""
    if not found or memory < found[0][1]:
        return "-"
    for (small, low), (large, high) in pairwise(found):
        if low <= memory < high:
            return f"{small + (large - small) * (memory - low) / (high - low):.1f}"
    return f"≥ {found[-1][0]:.1f}"


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("--rows", help="only rows whose name contains one of these, comma-separated: " + "; ".join(ROWS))
    add("--billions", type=numbers, default=[1, 2, 4, 8], help="billions of parameters (default 1,2,4,8)")
    add("--memory", type=numbers, default=[8, 16, 24, 48, 80], help="GB to fill (default 8,16,24,48,80)")
    add("--repeat", type=int, default=3, help="timed steps (default 3)")
    add("--device", default="cuda", help="cpu checks the script with a small model")
    for name, preset in SIZES.items():
        add(f"--{name}", type=int, default=preset, help=f"size of the model (default {preset})")
    add("--time-limit", type=float, default=180.0, help="seconds for one cell, start included (default 180)")
    add("--json", help="also write the results to this file, after every cell")
    add("--one", choices=list(ROWS), help=argparse.SUPPRESS)
    add("--size", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.billions.sort()
    options.memory.sort()
    options.names = select(parser, "--rows", ROWS, options.rows)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU; --device cpu checks the script with a small model")
    return options


def main() -> int:
    options = parse_options()
    if options.one:
        print(json.dumps(run(options.one, options)))
        return 0
    where = harness.device_name(options.device)
    print(f"{where}, torch {torch.__version__}: peak GB (s/iteration) by billions of parameters\n")
    print(markdown_head(["states", *(f"{size:g}" for size in options.billions)]))
    cells: list[dict[str, Any]] = []
    arguments = forwarded(options, ("device", *SIZES, "repeat"))
    for name in options.names:
        print(f"| {name} |", end="", flush=True)
        for size in options.billions:
            try:
                found = run_row(
                    __file__, ["--one", name, "--size", str(size), *arguments], options.time_limit
                )
                print(f" {found['peak_gb']:.1f} ({found['seconds']:.2f}) |", end="", flush=True)
            except RowError as error:
                found = {"error": str(error)}
                print(f" failed: {str(error).replace('|', '/')} |", end="", flush=True)
            cells.append({"states": name, "billions": size, **found})
            write_json(options.json, {"device": where, "torch": torch.__version__, "cells": cells})
        print(flush=True)
    rows = []
    for name in options.names:
        mine = [c for c in cells if c["states"] == name and "error" not in c]
        pairs = [(cell["params"] / 1e9, cell["peak_gb"]) for cell in mine]
        rows.append([name, *(fits(pairs, memory) for memory in options.memory)])
    print("\nBillions of parameters that fit in this many GB:\n")
    print(markdown(["states", *(f"{memory:g} GB" for memory in options.memory)], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
