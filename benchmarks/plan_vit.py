"""Compares `octavo.plan` with measurements: ViT-g (1.1B parameters) with four settings, on the local GPU.

The model, batch and loss are those of vit_g.py. The steps follow one another without a wait, as plans assume.
Each setting runs in its own process, so that memory peaks do not mix; the process makes the plan before the
model.

    PYTHONPATH=adapters/python python benchmarks/plan_vit.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

import harness  # noqa: F401  must be first: it adds the package of this tree to the import path
import octavo
import torch
import vit_g
from octavo.optim import AdamW4bit, AdamW8bit
from plan_pairs import HEAD, Pair, summary
from processes import RowError, forwarded, run_row
from report import markdown_row, option_parser

STEPS, ROUNDS = 4, 3  # the result is the median of the rounds
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
    ms = statistics.median(times[1:])
    return Pair(f"ViT-g, {setting}", plan.peak / 1e9, peak / 1e9, 1e3 * plan.step_seconds, ms)


def run(arguments: Sequence[str] | None = None) -> list[Pair]:
    parser = option_parser(__doc__)
    for name, preset in vit_g.SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=preset)
    parser.add_argument("--gpu", default="this")
    parser.add_argument("--setting", help="run only this setting, in this process")
    options = parser.parse_args(arguments)
    if options.setting:
        pair = measured(options.setting, options)
        print(json.dumps(vars(pair)))
        return [pair]
    pairs = []
    print(HEAD, flush=True)
    for setting in SETTINGS:
        try:
            found = run_row(__file__, ["--setting", setting, *forwarded(options, (*vit_g.SIZES, "gpu"))])
        except RowError as error:
            print(markdown_row([f"ViT-g, {setting}", error, "", "", "", "", ""]))
            continue
        pairs.append(Pair(**found))
        print(pairs[-1].line(), flush=True)
    if pairs:
        print("\n" + summary(pairs))
    return pairs


if __name__ == "__main__":
    run()
