"""How much GPU memory a transformer of so many billion parameters takes, for each place of its states.

Layers of width 4096 in plain torch, everything bf16, activation checkpointing, one sequence of 512 tokens: so
weights, gradients and states are what counts. Each cell is measured in a process of its own: peak memory of a
training step, and its time. The second table says what fits in a given memory, between the measured sizes by
a straight line.

PYTHONPATH=adapters/python python benchmarks/largest_model.py --billions 1,2,4,8 --json found.json
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import time
from itertools import pairwise
from typing import Any

import harness  # first: it finds the package of this tree
import makers
import torch
from offload_rows import Way, offloaded
from processes import RowError, run_row
from stopwatch import wait
from torch import nn
from torch.nn import functional as fn
from torch.utils.checkpoint import checkpoint
from vit_model import Block

LR = 1e-5
SIZES = {"width": 4096, "heads": 32, "vocabulary": 32000, "tokens": 512}
ROWS = {
    "torch fused": Way(makers.torch_fused),
    "octavo 8bit": Way(makers.octavo("8bit")),
    "octavo 4bit + gradient_release": Way(makers.octavo("4bit", gradient_release=True)),
    "stream 8bit + attach": offloaded("8bit", "stream", True),
    "stream 8bit + gradient_release": offloaded("8bit", "stream", gradient_release=True),
    "host 8bit + offload_gradients + attach": offloaded("8bit", "host", True, offload_gradients=True),
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
    """As many as come nearest to this number of parameters, at least one."""
    with torch.device("meta"):
        one, two = (sum(p.numel() for p in Transformer(n, options).parameters()) for n in (1, 2))
    return max(1, round((params - (2 * one - two)) / (two - one)))


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    way, device = ROWS[name], torch.device(options.device)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with device:
            net = Transformer(layers_for(1e9 * options.size, options), options)
    finally:
        torch.set_default_dtype(torch.float32)
    optimizer = way.make(net.parameters(), LR)
    if way.attach:
        optimizer.attach(net)
    tokens = torch.randint(options.vocabulary, (1, options.tokens + 1), device=device)

    def step() -> torch.Tensor:
        loss = fn.cross_entropy(net(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def finish() -> None:
        if hasattr(optimizer, "wait"):
            optimizer.wait()  # work on the host that no stream knows
        wait(device)

    first = step().item()
    finish()
    start = time.perf_counter()
    losses = [step() for _ in range(options.repeat)]
    finish()
    return {
        "params": sum(param.numel() for param in net.parameters()),
        "seconds": (time.perf_counter() - start) / options.repeat,
        "peak_gb": torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else 0.0,
        "losses": [first, losses[-1].item()],
    }


def fits(found: list[tuple[float, float]], room: float) -> str:
    """Billions of parameters that take this many GB, from pairs of (billions, GB) in their order."""
    if not found or room < found[0][1]:
        return "-"
    for (small, low), (large, high) in pairwise(found):
        if low <= room < high:
            return f"{small + (large - small) * (room - low) / (high - low):.1f}"
    return f"≥ {found[-1][0]:.1f}"


def parse_options() -> argparse.Namespace:
    def numbers(text: str) -> list[float]:
        return sorted(float(part) for part in text.split(","))

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--rows", help="only those whose name contains one of these, comma-separated: " + "; ".join(ROWS))
    add("--billions", type=numbers, default=[1, 2, 4, 8], help="of parameters (default 1,2,4,8)")
    add("--memory", type=numbers, default=[8, 16, 24, 48, 80], help="GB to fill (default 8,16,24,48,80)")
    add("--repeat", type=int, default=3, help="timed steps (default 3)")
    add("--device", default="cuda", help="cpu: a check of the script, with a small model")
    for name, preset in SIZES.items():
        add(f"--{name}", type=int, default=preset, help=f"of the model (default {preset})")
    add("--time-limit", type=float, default=180.0, help="seconds for one cell, start included (default 180)")
    add("--json", help="write the results there as well, after every cell")
    add("--one", choices=list(ROWS), help=argparse.SUPPRESS)
    add("--size", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    wanted = (options.rows or "").split(",")
    options.names = [name for name in ROWS if any(text in name for text in wanted)]
    if not options.names:
        parser.error(f"--rows: got {options.rows!r}, expected a part of one of {'; '.join(ROWS)}")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU; --device cpu checks the script, with a small model")
    return options


def main() -> int:
    options = parse_options()
    if options.one:
        print(json.dumps(run(options.one, options)))
        return 0
    device = torch.device(options.device)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else harness.cpu_name()
    print(f"{where}, torch {torch.__version__}: peak GB (s/iteration) by billions of parameters\n")
    print("| states | " + " | ".join(f"{size:g}" for size in options.billions) + " |")
    print("|" + "---|" * (1 + len(options.billions)))
    cells: list[dict[str, Any]] = []
    for name in options.names:
        print(f"| {name} |", end="", flush=True)
        for size in options.billions:
            arguments = ["--one", name, "--size", str(size), "--device", options.device]
            for option in (*SIZES, "repeat"):
                arguments += [f"--{option}", str(getattr(options, option))]
            try:
                found = run_row(__file__, arguments, options.time_limit)
                print(f" {found['peak_gb']:.1f} ({found['seconds']:.2f}) |", end="", flush=True)
            except RowError as error:
                found = {"error": str(error)}
                print(f" failed: {str(error).replace('|', '/')} |", end="", flush=True)
            cells.append({"states": name, "billions": size, **found})
            if options.json:
                whole = {"device": where, "torch": torch.__version__, "cells": cells}
                pathlib.Path(options.json).write_text(json.dumps(whole, indent=2))
        print(flush=True)
    print("\nBillions of parameters within so many GB:\n")
    print("| states | " + " | ".join(f"{room:g} GB" for room in options.memory) + " |")
    print("|" + "---|" * (1 + len(options.memory)))
    for name in options.names:
        mine = [c for c in cells if c["states"] == name and "error" not in c]
        pairs = [(cell["params"] / 1e9, cell["peak_gb"]) for cell in mine]
        print(f"| {name} | " + " | ".join(fits(pairs, room) for room in options.memory) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
