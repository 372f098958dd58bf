"""Measures the published PyTorch implementation of BDH: the speed of its training, and its losses.

`speed` times steps with random bytes that are already on the device. `loss` trains on a text, one run for
each seed, and appends each run to a file of JSON lines, which figures.py compares with `octavo train`.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import sys
import time
import zlib
from collections.abc import Sequence
from typing import Any

import bdh_settings
import torch
from bdh_settings import Settings
from convergence_parts import records
from convergence_parts import report as shared
from reference_training import MODES, Reference, load
from text_windows import Text


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    common = argparse.ArgumentParser(add_help=False)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    common.add_argument("--reference", type=pathlib.Path, required=True, help="a checkout of pathwaycom/bdh")
    common.add_argument("--device", type=torch.device, default=device)
    parser = shared.option_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("speed", parents=[common], help="time per step, tokens per second, memory")
    add = speed.add_argument
    add("--mode", type=shared.some_of(MODES), default=["bf16", "tf32"], help=f"some of {', '.join(MODES)}")
    add("--warm-up", type=int, default=5, help="steps before the timed ones (5)")
    add("--repeat", type=int, default=20, help="timed steps (20)")
    add("--json", action="store_true", help="print a JSON line for each mode")
    bdh_settings.add_flags(speed, Settings(n_embd=512, batch_size=32, block_size=512))
    loss = commands.add_parser("loss", parents=[common], help="train on a text and evaluate")
    add = loss.add_argument
    add("--text", type=pathlib.Path, required=True, help="text file; its last tenth is held out")
    add("--results", type=pathlib.Path, required=True, help="JSON lines, one for each finished run")
    add("--mode", choices=MODES, default="bf16")
    add("--seeds", type=int, default=3, help="seeds 0 to n-1 (3)")
    add("--time-limit", type=float, help="seconds; do not start a run that would take longer")
    bdh_settings.add_flags(loss, Settings())
    return parser.parse_args(arguments)


def measure(reference: Reference, warm_up: int, repeat: int) -> dict[str, Any]:
    settings, device, on_gpu = reference.settings, reference.device, reference.device.type == "cuda"
    generator = torch.Generator().manual_seed(0)
    size = (2, settings.batch_size, settings.block_size)
    tokens, targets = torch.randint(256, size, generator=generator).to(device)
    for turn in range(warm_up + repeat):
        if turn == warm_up:
            if on_gpu:
                torch.cuda.synchronize(device)
                torch.cuda.reset_peak_memory_stats(device)
            start = time.perf_counter()
        reference.step(tokens, targets, settings.rate(turn + 1))
    if on_gpu:
        torch.cuda.synchronize(device)
    seconds = (time.perf_counter() - start) / repeat
    return {
        "params": sum(p.numel() for p in reference.parameters),
        "ms": 1000 * seconds,
        "tokens_per_second": settings.batch_size * settings.block_size / seconds,
        "peak_gb": torch.cuda.max_memory_allocated(device) / 1e9 if on_gpu else None,
    }


def speed(options: argparse.Namespace) -> None:
    module, settings = load(options.reference), bdh_settings.from_flags(options)
    if not options.json:
        print(shared.markdown_head(["reference", "params", "ms/step", "tokens/s", "peak GB"]))
    for mode in options.mode:
        found: dict[str, Any] = {"mode": mode}
        try:
            model = Reference(module, settings, mode, options.device)
            found |= measure(model, options.warm_up, options.repeat)
            del model  # frees the memory for the next mode
        except torch.OutOfMemoryError:
            found["error"] = "out of memory"
        if options.device.type == "cuda":
            torch.cuda.empty_cache()
        if options.json:
            print(json.dumps(found), flush=True)
            continue
        cells = ["", found.get("error"), "", ""]
        if "error" not in found:
            peak = "" if found["peak_gb"] is None else f"{found['peak_gb']:.1f}"
            cells = [found["params"], f"{found['ms']:.1f}", f"{found['tokens_per_second']:.0f}", peak]
        print(shared.markdown_row([mode, *cells]), flush=True)


def train(reference: Reference, text: Text, seed: int) -> dict[str, Any]:
    """Trains until the last step or until the loss is not finite."""
    settings = reference.settings
    starts = text.training_starts(settings.max_steps, settings.batch_size, seed)
    curve: dict[str, list[Any]] = {"steps": [], "validation": [], "train": [], "rates": []}
    losses = []
    for step in range(1, settings.max_steps + 1):
        losses.append(reference.step(*text.windows(starts[step - 1]), settings.rate(step)))
        if not settings.evaluated(step):
            continue
        found = (step, reference.evaluate(text), float(torch.stack(losses).mean()), settings.rate(step))
        for values, value in zip(curve.values(), found, strict=True):
            values.append(value)
        losses.clear()
        if not math.isfinite(found[1]):
            break
    return {"loss": curve["validation"][-1], **curve}


def loss(options: argparse.Namespace) -> None:
    module, settings = load(options.reference), bdh_settings.from_flags(options)
    data = options.text.read_bytes()
    text = Text(data, settings.block_size, options.device)
    common = {**settings.as_dict(), "text_crc": f"{zlib.crc32(data):08x}"}
    known = records.load(options.results)
    records.check_settings(options.results, known, common)
    arm, begin, longest = f"reference {options.mode}", time.monotonic(), 0.0
    finished = {int(record["seed"]) for record in known if record["arm"] == arm}
    for seed in (seed for seed in range(options.seeds) if seed not in finished):
        start = time.monotonic()
        if options.time_limit is not None and start + longest - begin >= options.time_limit:
            print(f"time is up before seed {seed}; the same call resumes", file=sys.stderr)
            break
        made = Reference(module, settings, options.mode, options.device, seed)
        found = {"arm": arm, "seed": seed, **train(made, text, seed)}
        longest = max(longest, time.monotonic() - start)
        about = {"seconds": time.monotonic() - start, "settings": common, "torch": torch.__version__}
        records.append(options.results, {**found, **about})
        print(f"{arm}, seed {seed}: {found['loss']:.4f} ({longest:.0f} s)", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    (speed if options.command == "speed" else loss)(options)
    return 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except (ValueError, OSError) as error:
        raise SystemExit(f"reference.py: {error}") from error
