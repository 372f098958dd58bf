"""A training step of ViT-g (1.1B parameters) with each optimizer: seconds an iteration and peak GPU memory.

The model is Dinov2 of transformers: width 1536, 40 layers, 24 heads, SwiGLU; pure bf16, activation
checkpointing, batch 32 at 224 px; the loss is the mean of squares of the last hidden state. Each optimizer
runs in a process of its own, so that peaks do not mix.

PYTHONPATH=adapters/python python benchmarks/vit_g.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import makers
import torch
from processes import RowError, run_row
from stopwatch import wait

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
    torch.manual_seed(0)
    with torch.device(options.device):
        made = Dinov2Model(config).to(dtype)
    made.gradient_checkpointing_enable()
    made.train()
    return made


def inputs(options: argparse.Namespace, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(options.batch, 3, 224, 224, device=options.device, dtype=dtype)


def loss_of(net: Any, images: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = net(images).last_hidden_state.float().square().mean()
    return result


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    net, device, warm_up = model(options), torch.device(options.device), options.warm_up
    on_gpu = device.type == "cuda"
    optimizer = OPTIMIZERS[name](net.parameters(), LR)
    images = inputs(options, torch.bfloat16)
    times = []
    for turn in range(warm_up + options.repeat):
        if turn == warm_up and on_gpu:
            wait(device)
            torch.cuda.reset_peak_memory_stats()
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
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if on_gpu else 0.0,
        "loss": loss.item(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--optimizer", help="only those whose name contains one of these, comma-separated")
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--device", default="cuda", help="cpu: a check of the script, with a small model")
    for name, preset in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=preset, help=f"of the model (default {preset})")
    parser.add_argument("--json", help="write the results there as well")
    parser.add_argument("--one", choices=list(OPTIMIZERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run(options.one, options)))
        return 0
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU")
    wanted = options.optimizer.split(",") if options.optimizer else [""]
    found = []
    print("| optimizer | s/iteration | peak GB |\n|---|---|---|")
    for name in (n for n in OPTIMIZERS if any(text in n for text in wanted)):
        arguments = ["--one", name, "--repeat", str(options.repeat), "--warm-up", str(options.warm_up)]
        arguments += ["--device", options.device]
        for size in SIZES:
            arguments += [f"--{size}", str(getattr(options, size))]
        try:
            result = run_row(__file__, arguments)
        except RowError as error:
            print(f"| {name} | failed: {error} | |", flush=True)
            continue
        found.append(result)
        print(f"| {name} | {result['seconds']:.3f} | {result['peak_gb']:.2f} |", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(found, file, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
