"""Measures the optimizers of torchao's guide to low-bit optimizers: ViT-H (630M), bf16 AMP, batch 8.

Parameters are fp32 with autocast to bf16. Every row has the same weights and the same images. The rows run
several times, in turns. A row's time is the wall clock of iterations without a wait between them, so that the
host may run ahead of the GPU. A peer that is not installed is skipped. torchao compiles its step in the first
iterations, which are not timed and take minutes.

With --data FOLDER the script trains on that data set for --epochs and measures the accuracy on held-out
images. Without it, the script makes the images; vit_digits.py measures the accuracy of a small model.

PYTHONPATH=adapters/python python benchmarks/vit_h.py
python benchmarks/vit_h.py --timm vit_huge_patch14_224.orig_in21k --pretrained --data resisc45 --epochs 2
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import harness  # must be first: it adds the package of this tree to the import path
import image_folder
import makers
import torch
from classification import Images as DataSet
from classification import Training, accuracy, train
from report import markdown_head, markdown_row, matching, option_parser, require_positive, write_json
from stopwatch import Stopwatch, peak_bytes, release, reset_peak, wait
from torch.nn import functional as fn
from vit_model import Config, Images, VisionTransformer

LR = 1e-4
BASE = "torch fused"
FORMATS = ("fp32", "bf16", "8bit", "fp8", "fp8-e5m2", "4bit", "4bit/8bit", "4bit-rank1", "fp4", "fp3")
ROWS: dict[str, makers.Make] = {
    BASE: makers.torch_fused,
    "torch": makers.torch_default,
    **{f"octavo {state}": makers.octavo(state) for state in FORMATS},
    "octavo 8bit, gradient release": makers.octavo("8bit", gradient_release=True),
    "octavo 4bit, gradient release": makers.octavo("4bit", gradient_release=True),
    "bitsandbytes 8bit": makers.bitsandbytes("AdamW8bit"),
    "bitsandbytes 8bit, paged": makers.bitsandbytes("PagedAdamW8bit"),
    "torchao 8bit": makers.torchao("AdamW8bit"),
    "torchao 4bit": makers.torchao("AdamW4bit"),
    "torchao fp8": makers.torchao("AdamWFp8"),
    "lpmm 4bit": makers.lpmm(fused=True),
    "lpmm 4bit-rank1": makers.lpmm(),
}
GUIDE = (  # the optimizers of the guide's table, and Octavo's corresponding formats
    *(BASE, "torch", "bitsandbytes 8bit", "torchao 8bit", "torchao fp8", "torchao 4bit"),
    *("lpmm 4bit", "lpmm 4bit-rank1"),
    *("octavo 8bit", "octavo fp8", "octavo 4bit", "octavo 4bit-rank1"),
)
ROWS_HELP = (
    "'all', or rows whose name contains one of these, comma-separated: torch fused,octavo "
    "(default: the optimizers of the guide's table)"
)
LAST = 10  # steps whose mean loss is reported
PEAK = "peak GB"


@dataclass
class Row:
    """The results of one round, or the medians of several rounds."""

    optimizer: str
    params: int
    peak_gb: float | None  # peak of torch's allocator; None on a CPU
    ms: float  # time of an iteration, or with a data set of the last epoch
    optimizer_ms: float | None  # None with a data set
    loss: float
    accuracy: float | None = None  # percent of the held-out images; None without a data set


def make_model(options: argparse.Namespace, device: torch.device) -> Any:
    torch.manual_seed(0)
    with device:
        if options.timm:
            create = makers.imported("timm").create_model
            return create(options.timm, pretrained=options.pretrained, num_classes=options.config.classes)
        return VisionTransformer(options.config)


def peak_gb(device: torch.device) -> float | None:
    return peak_bytes(device) / 1e9 if device.type == "cuda" else None


def count(model: Any) -> int:
    return sum(param.numel() for param in model.parameters())


def run(name: str, options: argparse.Namespace, device: torch.device) -> Row:
    """Runs one round of a row on the images that the script makes."""
    model = make_model(options, device)
    optimizer = ROWS[name](model.parameters(), options.lr)
    images, watch = Images(options.config, options.batch, device), Stopwatch(device)
    losses = list[torch.Tensor]()
    start = 0.0
    for turn in range(options.steps):
        if turn == options.warm_up:
            reset_peak(device)
            start = time.perf_counter()
        batch, labels = images.next()
        with torch.autocast(device.type, torch.bfloat16):
            loss = fn.cross_entropy(model(batch), labels)
        loss.backward()
        watch.time(optimizer.step)
        optimizer.zero_grad()
        losses.append(loss.detach())
    wait(device)
    elapsed = time.perf_counter() - start
    return Row(
        name,
        count(model),
        peak_gb(device),
        1e3 * elapsed / (options.steps - options.warm_up),
        statistics.median(watch.ms()[options.warm_up :]),
        float(torch.stack(losses[-LAST:]).mean()),
    )


def normalized(pixels: torch.Tensor, model: Any, device: torch.device) -> torch.Tensor:
    """Returns the images with the mean and deviation that timm has for the network, else from -1 to 1."""
    known = getattr(model, "pretrained_cfg", {})
    mean, deviation = (
        torch.tensor(known.get(key, (0.5, 0.5, 0.5)), device=device).view(1, 3, 1, 1)
        for key in ("mean", "std")
    )
    return (pixels.to(device).float() / 255 - mean) / deviation


def mirrored(pixels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Mirrors a random half of the images."""
    chosen = torch.rand(len(pixels), generator=generator) < 0.5
    return torch.where(chosen.view(-1, 1, 1, 1), pixels.flip(-1), pixels)


def fine_tune(
    name: str, options: argparse.Namespace, device: torch.device, data: tuple[DataSet, DataSet]
) -> Row:
    """Runs a row on a data set; `ms` is the time of the last epoch."""
    model = make_model(options, device)
    optimizer = ROWS[name](model.parameters(), options.lr)

    def prepare(pixels: torch.Tensor) -> torch.Tensor:
        return normalized(pixels, model, device)

    training = Training(options.epochs, options.batch, device, prepare, True, mirrored)
    reset_peak(device)
    done = train(model, optimizer, data[0], 0, training)
    peak = peak_gb(device)
    found = accuracy(model, data[1], training)
    return Row(name, count(model), peak, 1e3 * done.epoch_s, None, done.loss, found)


def joined(rounds: list[Row]) -> Row:
    """Returns the medians of the times, and the other values of the first round, which all rounds share."""
    parts = [each.optimizer_ms for each in rounds if each.optimizer_ms is not None]
    ms = statistics.median(each.ms for each in rounds)
    return replace(rounds[0], ms=ms, optimizer_ms=statistics.median(parts) if parts else None)


def cells(rounds: list[Row], base: list[Row]) -> list[str]:
    row, times = joined(rounds), [each.ms for each in rounds]
    peak = "-" if row.peak_gb is None else f"{row.peak_gb:.2f}"
    if row.accuracy is not None:
        return [row.optimizer, peak, f"{row.ms / 1e3:.1f}", f"{row.accuracy:.2f}", f"{row.loss:.3f}"]
    ratio = f"{row.ms / joined(base).ms:.2f}" if base else "-"
    spread = f"{row.ms:.1f} ({min(times):.1f} to {max(times):.1f})"
    return [row.optimizer, peak, spread, ratio, f"{row.optimizer_ms:.2f}", f"{row.loss:.3f}"]


def heads(options: argparse.Namespace) -> list[str]:
    if options.data:
        return ["optimizer", PEAK, f"seconds of epoch {options.epochs}", "accuracy %", "loss"]
    return ["optimizer", PEAK, "ms/iteration", f"of {BASE}", "optimizer ms", "loss"]


def measure(
    names: list[str], rounds: int, work: Callable[[str], Row], device: torch.device
) -> tuple[dict[str, list[Row]], list[str]]:
    """Runs the rows in turns and prints them; returns their rounds, and a note for each failed row."""
    found: dict[str, list[Row]] = {name: [] for name in names}
    notes: dict[str, str] = {}
    for turn in range(rounds):
        for name in names:
            if name in notes:
                continue
            print(f"round {turn + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            try:
                found[name].append(work(name))
                if turn == rounds - 1:
                    print(markdown_row(cells(found[name], found.get(BASE, []))), flush=True)
            except Exception as error:  # a peer may fail in any way, and the others still count
                notes[name] = makers.failure(name, error)
            finally:
                release(device)
    return {name: rows for name, rows in found.items() if rows and name not in notes}, list(notes.values())


def names_of(wanted: str | None, parser: argparse.ArgumentParser) -> list[str]:
    """Returns the names of the rows that --rows selects."""
    if wanted is None:
        return list(GUIDE)
    names = matching(ROWS, None if wanted == "all" else wanted)
    if not names:
        parser.error(f"--rows: got {wanted!r}, expected 'all' or a part of one of {', '.join(ROWS)}")
    return names


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__)
    add = parser.add_argument
    preset = Config()
    add("--rows", help=ROWS_HELP)
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--steps", type=int, default=40, help="steps of a row in a round, warm-up included (default 40)")
    add("--warm-up", type=int, default=5, help="steps that are not timed (default 5)")
    add("--rounds", type=int, default=3, help="rounds, in which the rows take turns (default 3)")
    add("--batch", type=int, default=8, help="images (default 8)")
    add("--lr", type=float, default=LR, help=f"learning rate (default {LR})")
    add("--timm", help="use this model of timm instead of the script's: vit_huge_patch14_clip_224")
    add("--pretrained", action="store_true", help="use the weights that timm downloads for the model")
    add("--data", help="a data set to train on: a folder that has one folder of images for each class")
    add("--epochs", type=int, default=2, help="epochs over --data (default 2)")
    for name in ("layers", "width", "heads", "image", "patch", "classes"):
        add(f"--{name}", type=int, default=getattr(preset, name), help=f"(default {getattr(preset, name)})")
    add("--json", help="also write the results to this file")
    options = parser.parse_args()
    sizes = {name: getattr(options, name) for name in vars(preset)}
    require_positive(parser, options, *sizes, "batch", "warm-up", "rounds", "epochs")
    if options.steps <= options.warm_up:
        parser.error(f"--steps: got {options.steps}, expected more than --warm-up {options.warm_up}")
    if options.width % options.heads or options.image % options.patch:
        parser.error("--width must be a multiple of --heads, and --image of --patch")
    if options.pretrained and not options.timm:
        parser.error("--pretrained needs --timm: only timm's models have weights to download")
    options.names = names_of(options.rows, parser)
    options.config = Config(**sizes)
    return options


def prepare(options: argparse.Namespace, device: torch.device) -> Callable[[str], Row]:
    """Returns the function that runs a row. Raises PeerMissingError or DataError without data or network."""
    data: tuple[DataSet, DataSet] | None = None
    if options.data:
        *parts, classes = image_folder.load(options.data, options.image)
        data = (parts[0], parts[1])
        options.config = Config(**{**vars(options.config), "classes": len(classes)})
    if options.timm:
        try:
            makers.imported("timm")
        except makers.PeerMissingError as missing:
            raise makers.PeerMissingError(f"--timm needs timm (pip install timm): {missing}") from missing
        try:
            make_model(options, torch.device("cpu"))
        except Exception as error:  # timm and the hub raise many types for a name or a download
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            asked = f"--timm {options.timm}" + (" --pretrained" if options.pretrained else "")
            raise makers.PeerMissingError(f"{asked}: {reason}") from error
    if data is None:
        return lambda name: run(name, options, device)
    folder = data
    return lambda name: fine_tune(name, options, device, folder)


def main() -> int:
    options = parse_options()
    device = torch.device(options.device)
    where = harness.device_name(device)
    try:
        work = prepare(options, device)
    except (makers.PeerMissingError, image_folder.DataError) as missing:
        print(f"vit_h.py: {missing}", file=sys.stderr)
        return 1
    rounds = 1 if options.data else options.rounds
    steps = f"{options.epochs} epochs" if options.data else f"{options.steps} steps, {rounds} rounds"
    print(f"{where}, torch {torch.__version__}, batch {options.batch}, {steps}\n", flush=True)
    print(markdown_head(heads(options)), flush=True)
    found, notes = measure(options.names, rounds, work, device)
    rows = [joined(each) for each in found.values()]
    if rows:
        notes.insert(0, f"{rows[0].params:,} parameters")
    print("\n" + "\n".join(notes))
    every = {name: [asdict(each) for each in each_rounds] for name, each_rounds in found.items()}
    result = {"device": where, "rows": [asdict(row) for row in rows], "rounds": every, "notes": notes}
    write_json(options.json, result)
    return 0 if rows and not any(note.startswith("failed: octavo") for note in notes) else 1


if __name__ == "__main__":
    sys.exit(main())
