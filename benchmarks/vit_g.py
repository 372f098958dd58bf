"""Measures a training step of ViT-g (1.1B parameters) with each optimizer: seconds and peak GPU memory.

The model is Dinov2 of transformers: width 1536, 40 layers, 24 heads, SwiGLU; pure bf16, activation
checkpointing, batch 32 at 224 px. The loss is the mean of squares of the last hidden state. Each optimizer
runs in its own process, so that memory peaks do not mix.

PYTHONPATH=adapters/python python benchmarks/vit_g.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import makers
import torch
from processes import RowError, forwarded, run_row
from report import markdown_head, markdown_row, matching, option_parser, write_json
from stopwatch import peak_bytes, reset_peak, wait

LR = 1e-4
SIZES = {"layers": 40, "width": 1536, "heads": 24, "batch": 32}
OPTIMIZERS: dict[str, makers.Make] = {
    "torch AdamW fused": makers.torch_fused,
    "octavo AdamW8bit": makers.octavo("8bit"),
    "octavo AdamW4bit": makers.octavo("4bit"),
    "octavo AdamWFp8": makers.octavo("fp8"),
    "octavo AdamW8bit, 24-bit master": makers.octavo("8bit", master=24),
    "octavo AdamW8bit, gradient release": makers.octavo("8bit", gradient_release=True),
    "octavo AdamW4bit, gradient release": makers.octavo("4bit", gradient_release=True),
    "bitsandbytes AdamW8bit": makers.bitsandbytes("AdamW8bit"),
    "torchao AdamW8bit": makers.torchao("AdamW8bit"),
    "torchao AdamW4bit": makers.torchao("AdamW4bit"),
}


def checkpointed(make: Callable[[], Any], device: str, dtype: torch.dtype) -> Any:
    """Makes a model of transformers on the device and enables activation checkpointing."""
    torch.manual_seed(0)
    with torch.device(device):
        net = make().to(dtype)
    net.gradient_checkpointing_enable()
    net.train()
    return net


def model(options: argparse.Namespace, dtype: torch.dtype = torch.bfloat16) -> Any:
    from transformers import Dinov2Config, Dinov2Model

    config = Dinov2Config(
        hidden_size=options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        use_swiglu_ffn=True,
        image_size=224,
        patch_size=14,
    )
    return checkpointed(lambda: Dinov2Model(config), options.device, dtype)


def inputs(options: argparse.Namespace, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(options.batch, 3, 224, 224, device=options.device, dtype=dtype)


def loss_of(net: Any, images: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = net(images).last_hidden_state.float().square().mean()
    return result


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    net, device, warm_up = model(options), torch.device(options.device), options.warm_up
    optimizer = OPTIMIZERS[name](net.parameters(), LR)
    images = inputs(options, torch.bfloat16)
    times = []
    for turn in range(warm_up + options.repeat):
        if turn == warm_up:
            reset_peak(device)
        start = time.perf_counter()
        loss = loss_of(net, images)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        wait(device)
        times.append(time.perf_counter() - start)
    return {
        "optimizer": name,
        "params": sum(p.numel() for p in net.parameters()),
        "seconds": statistics.median(times[warm_up:]),
        "peak_gb": peak_bytes(device) / 1e9,
        "loss": loss.item(),
    }


def main() -> int:
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("--optimizer", help="only optimizers whose name contains one of these, comma-separated")
    add("--repeat", type=int, default=10, help="timed iterations (default 10)")
    add("--warm-up", type=int, default=3, help="iterations before the timed ones (default 3)")
    add("--device", default="cuda", help="cpu checks the script with a small model")
    for name, preset in SIZES.items():
        add(f"--{name}", type=int, default=preset, help=f"size of the model (default {preset})")
    add("--json", help="also write the results to this file")
    add("--one", choices=list(OPTIMIZERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run(options.one, options)))
        return 0
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU")
    results = []
    print(markdown_head(["optimizer", "s/iteration", "peak GB"]))
    arguments = forwarded(options, ("repeat", "warm-up", "device", *SIZES))
    for name in matching(OPTIMIZERS, options.optimizer):
        try:
            result = run_row(__file__, ["--one", name, *arguments])
        except RowError as error:
            print(markdown_row([name, f"failed: {error}", "", ""]), flush=True)
            continue
        results.append(result)
        print(markdown_row([name, f"{result['seconds']:.3f}", f"{result['peak_gb']:.2f}"]), flush=True)
    write_json(options.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
