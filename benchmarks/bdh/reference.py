"""The published PyTorch implementation of BDH: how fast it trains, and to what loss.

`speed` times steps over random bytes that already lie on the device. `loss` trains on a text, a run per
seed, and appends each to a file of JSON lines, which figures.py compares with runs of `octavo train`.
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
from reference_training import MODES, Reference, load
from text_windows import Text


def _modes(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in MODES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(MODES)}")
    return names


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    shared = argparse.ArgumentParser(add_help=False)
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    shared.add_argument("--reference", type=pathlib.Path, required=True, help="a checkout of pathwaycom/bdh")
    shared.add_argument("--device", type=torch.device, default=device)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    speed = commands.add_parser("speed", parents=[shared], help="time per step, tokens per second, memory")
    speed.add_argument("--mode", type=_modes, default=["bf16", "tf32"], help=f"of {', '.join(MODES)}")
    speed.add_argument("--warm-up", type=int, default=5, help="steps (5)")
    speed.add_argument("--repeat", type=int, default=20, help="steps timed (20)")
    speed.add_argument("--json", action="store_true", help="print a JSON line for each mode")
    bdh_settings.add_flags(speed, Settings(n_embd=512, batch_size=32, block_size=512))
    loss = commands.add_parser("loss", parents=[shared], help="train on a text and evaluate")
    loss.add_argument("--text", type=pathlib.Path, required=True, help="its last tenth is held out")
    loss.add_argument("--results", type=pathlib.Path, required=True, help="JSON lines, one per finished run")
    loss.add_argument("--mode", choices=MODES, default="bf16")
    loss.add_argument("--seeds", type=int, default=3, help="seeds 0 to n-1 (3)")
    loss.add_argument("--time-limit", type=float, help="seconds; start no run that would take longer")
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
        print("| reference | params | ms/step | tokens/s | peak GB |\n|---|---|---|---|---|")
    for mode in options.mode:
        found: dict[str, Any] = {"mode": mode}
        try:
            made = Reference(module, settings, mode, options.device)
            found |= measure(made, options.warm_up, options.repeat)
            del made  # its memory is the next one's
        except torch.OutOfMemoryError:
            found["error"] = "out of memory"
        if options.device.type == "cuda":
            torch.cuda.empty_cache()
        if options.json:
            print(json.dumps(found), flush=True)
        elif "error" in found:
            print(f"| {mode} | | {found['error']} | | |", flush=True)
        else:
            peak = "" if found["peak_gb"] is None else f"{found['peak_gb']:.1f}"
            cells = f"{found['params']} | {found['ms']:.1f} | {found['tokens_per_second']:.0f} | {peak}"
            print(f"| {mode} | {cells} |", flush=True)


def train(reference: Reference, text: Text, seed: int) -> dict[str, Any]:
    """A run, up to a loss that is no number."""
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
            print(f"time is up before seed {seed}; the same call goes on", file=sys.stderr)
            break
        made = Reference(module, settings, options.mode, options.device, seed)
        found = {"arm": arm, "seed": seed, **train(made, text, seed)}
        longest = max(longest, time.monotonic() - start)
        whole = {**found, "seconds": time.monotonic() - start, "settings": common, "torch": torch.__version__}
        records.append(options.results, whole)
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
