"""The table of torchao's guide to low-bit optimizers with every format: ViT-H (630M), bf16 AMP, batch 8.

Peak GPU memory, time of an iteration and of the optimizer's part in it, and the loss at the end. fp32
parameters, autocast to bf16, the same weights and the same images for every row; one row after the other in
one process. A peer that is not installed is skipped by name. torchao compiles its step in the first
iterations, which are not timed and take minutes: name its rows last, or leave them out (--rows).

PYTHONPATH=adapters/python python benchmarks/vit_h.py --rows torch,octavo,bitsandbytes
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import harness  # first: it finds the package of this tree
import makers
import torch
from stopwatch import Stopwatch, wait
from torch.nn import functional as fn
from vit_model import Config, Images, VisionTransformer

LR = 1e-4
BASE = "torch fused"
FORMATS = ("fp32", "bf16", "8bit", "fp8", "fp8-e5m2", "4bit", "4bit/8bit", "4bit-rank1")
ROWS: dict[str, makers.Make] = {
    BASE: makers.torch_fused,
    **{f"octavo {state}": makers.octavo(state) for state in FORMATS},
    **{
        f"octavo {state}, gradient release": makers.octavo(state, gradient_release=True)
        for state in ("8bit", "4bit")
    },
    "bitsandbytes 8bit": makers.bitsandbytes("AdamW8bit"),
    "bitsandbytes 8bit, paged": makers.bitsandbytes("PagedAdamW8bit"),
    "torchao 8bit": makers.torchao("AdamW8bit"),
    "torchao 4bit": makers.torchao("AdamW4bit"),
    "torchao fp8": makers.torchao("AdamWFp8"),
}
LAST = 10  # steps whose mean loss is reported


@dataclass
class Row:
    optimizer: str
    params: int
    peak_gb: float | None  # of torch's allocator; none on a CPU
    ms: float  # an iteration, waited for
    optimizer_ms: float
    loss: float


def make_model(options: argparse.Namespace, device: torch.device) -> Any:
    torch.manual_seed(0)
    with device:
        if options.timm:
            return makers.imported("timm").create_model(options.timm, num_classes=options.config.classes)
        return VisionTransformer(options.config)


def run(name: str, options: argparse.Namespace, device: torch.device) -> Row:
    model = make_model(options, device)
    optimizer = ROWS[name](model.parameters(), options.lr)
    images, watch = Images(options.config, options.batch, device), Stopwatch(device)
    times, losses = list[float](), list[torch.Tensor]()
    for turn in range(options.steps):
        if turn == options.warm_up and device.type == "cuda":
            wait(device)
            torch.cuda.reset_peak_memory_stats(device)
        batch, labels = images.next()
        wait(device)
        start = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16):
            loss = fn.cross_entropy(model(batch), labels)
        loss.backward()
        watch.time(optimizer.step)
        optimizer.zero_grad()
        wait(device)
        times.append(1e3 * (time.perf_counter() - start))
        losses.append(loss.detach())
    on_gpu = device.type == "cuda"
    return Row(
        name,
        sum(param.numel() for param in model.parameters()),
        torch.cuda.max_memory_allocated(device) / 1e9 if on_gpu else None,
        statistics.median(times[options.warm_up :]),
        statistics.median(watch.ms()[options.warm_up :]),
        float(torch.stack(losses[-LAST:]).mean()),
    )


def cells(row: Row, base: Row | None) -> str:
    peak = "-" if row.peak_gb is None else f"{row.peak_gb:.2f}"
    ratio = f"{row.ms / base.ms:.2f}" if base else "-"
    values = [row.optimizer, peak, f"{row.ms:.1f}", ratio, f"{row.optimizer_ms:.2f}", f"{row.loss:.3f}"]
    return "| " + " | ".join(values) + " |"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    preset = Config()
    add("--rows", help="only those whose name contains one of these, comma-separated: torch fused,octavo")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--steps", type=int, default=40, help="of each row, warm-up included (default 40)")
    add("--warm-up", type=int, default=5, help="steps that are not timed (default 5)")
    add("--batch", type=int, default=8, help="images (default 8)")
    add("--lr", type=float, default=LR, help=f"learning rate (default {LR})")
    add("--timm", help="a model of timm in place of the script's own, by name: vit_huge_patch14_clip_224")
    for name in ("layers", "width", "heads", "image", "patch", "classes"):
        add(f"--{name}", type=int, default=getattr(preset, name), help=f"(default {getattr(preset, name)})")
    add("--json", help="write the results there as well")
    options = parser.parse_args()
    sizes = {name: getattr(options, name) for name in vars(preset)}
    for name, value in {**sizes, "batch": options.batch, "warm-up": options.warm_up}.items():
        if value < 1:
            parser.error(f"--{name}: got {value}, expected at least 1")
    if options.steps <= options.warm_up:
        parser.error(f"--steps: got {options.steps}, expected more than --warm-up {options.warm_up}")
    if options.width % options.heads or options.image % options.patch:
        parser.error("--width must be a multiple of --heads, and --image of --patch")
    options.config = Config(**sizes)
    wanted = options.rows.split(",") if options.rows else [""]
    options.names = [name for name in ROWS if any(text in name for text in wanted)]
    if not options.names:
        parser.error(f"--rows: got {options.rows!r}, expected a part of one of {', '.join(ROWS)}")
    return options


def main() -> int:
    options = parse_options()
    device = torch.device(options.device)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else harness.cpu_name()
    print(f"{where}, torch {torch.__version__}, batch {options.batch}, {options.steps} steps\n")
    print(f"| optimizer | peak GB | ms/iteration | of {BASE} | optimizer ms | loss |\n" + "|" + "---|" * 6)
    rows: list[Row] = []
    notes: list[str] = []
    for name in options.names:
        try:
            row = run(name, options, device)
        except makers.PeerMissingError as missing:
            notes.append(f"skipped: {name}: {missing}")
            continue
        except Exception as error:  # a peer may fail in any way, and the others still count
            notes.append(f"failed: {name}: {type(error).__name__}: {error}".splitlines()[0])
            continue
        finally:
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
        rows.append(row)
        print(cells(row, next((each for each in rows if each.optimizer == BASE), None)), flush=True)
    if rows:
        notes.insert(0, f"{rows[0].params:,} parameters")
    print("\n" + "\n".join(notes))
    if options.json:
        with open(options.json, "w") as file:
            json.dump(
                {"device": where, "rows": [asdict(row) for row in rows], "notes": notes}, file, indent=2
            )
    return 0 if rows and not any(note.startswith("failed: octavo") for note in notes) else 1


if __name__ == "__main__":
    sys.exit(main())
