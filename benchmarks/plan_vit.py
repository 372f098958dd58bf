"""`octavo.plan` beside what was measured: ViT-g (1.1B parameters) with four settings, on the GPU here.

The model, batch and loss are those of vit_g.py. Steps follow one another, as in the other rows of plans.
Each setting runs in a process of its own, so that peaks do not mix; the plan is made in the same process
before the model is.

    PYTHONPATH=adapters/python python benchmarks/plan_vit.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import harness  # noqa: F401  (first: it finds the package of this tree)
import octavo
import torch
import vit_g
from octavo.optim import AdamW4bit, AdamW8bit
from plan_pairs import Pair, summary

STEPS, ROUNDS = 4, 3  # the median of the rounds counts
SETTINGS = ("torch fused", "8bit", "4bit", "8bit, no checkpointing")


def model(options: argparse.Namespace, device: str, checkpointing: bool) -> Any:
    made = vit_g.model(argparse.Namespace(**{**vars(options), "device": device}))
    if not checkpointing:
        made.gradient_checkpointing_disable()
    return made


def optimizer_of(setting: str) -> Any:
    if setting.startswith("torch"):
        return lambda params: torch.optim.AdamW(params, lr=1e-4, fused=True)
    cls = AdamW4bit if setting.startswith("4bit") else AdamW8bit
    return lambda params: cls(params, lr=1e-4)


def loss_of(output: Any) -> torch.Tensor:
    return output.last_hidden_state.float().square().mean()  # type: ignore[no-any-return]


def measured(setting: str, options: argparse.Namespace) -> Pair:
    checkpointing = "no checkpointing" not in setting
    shape = {"pixel_values": ((options.batch, 3, 224, 224), torch.bfloat16)}
    plan = octavo.plan(
        model(options, "meta", checkpointing), optimizer_of(setting), shape, loss=loss_of, gpu=options.gpu
    )
    trained = model(options, "cuda", checkpointing)
    optimizer = optimizer_of(setting)(trained.parameters())
    images = torch.randn(options.batch, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    times = []
    for _ in range(1 + ROUNDS):
        start = time.perf_counter()
        for _ in range(STEPS):
            loss_of(trained(pixel_values=images)).backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start) / STEPS)
    peak = torch.cuda.max_memory_allocated()
    return Pair(
        f"ViT-g, {setting}",
        plan.peak / 1e9,
        peak / 1e9,
        1e3 * plan.step_seconds,
        statistics.median(times[1:]),
    )


def run(arguments: Sequence[str] | None = None) -> list[Pair]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--layers", type=int, default=40)
    parser.add_argument("--width", type=int, default=1536)
    parser.add_argument("--heads", type=int, default=24)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--gpu", default="this")
    parser.add_argument("--setting", help="one of them, in this process")
    given = parser.parse_args(arguments)
    if given.setting:
        pair = measured(given.setting, given)
        print(json.dumps(vars(pair)))
        return [pair]
    pairs = []
    print(
        "| | plan GB | measured | off | plan ms | measured | off |\n|---|---|---|---|---|---|---|", flush=True
    )
    for setting in SETTINGS:
        line = [sys.executable, __file__, *(arguments if arguments is not None else sys.argv[1:])]
        done = subprocess.run([*line, "--setting", setting], capture_output=True, text=True)
        if done.returncode != 0:
            print(f"| ViT-g, {setting} | {done.stderr.strip().splitlines()[-1]} | | | | | |")
            continue
        pairs.append(Pair(**json.loads(done.stdout.splitlines()[-1])))
        print(pairs[-1].line(), flush=True)
    if pairs:
        print("\n" + summary(pairs))
    return pairs


if __name__ == "__main__":
    run()
