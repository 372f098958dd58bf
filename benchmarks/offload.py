"""Trains ViT-g (1.1B) with the optimizer's states on the GPU, streamed through it, or stepped on the CPU.

The model is that of vit_g.py, or with --model llama that of llama.py, in pure bf16 or AMP, eager or compiled.
Octavo is compared with the offload of torchao and of DeepSpeed. The table has the wall time over 10
iterations without a synchronize between them, the peak GPU memory, and the host memory of the optimizer. Each
row runs in its own process. A row that fails prints its reason, and a package that is not installed is
skipped. --deepspeed names a folder that contains DeepSpeed if it is not installed.

PYTHONPATH=adapters/python python benchmarks/offload.py --rows "bf16: none,bf16: octavo" --json found.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import time
from typing import Any

import harness  # must be first: it adds the package of this tree to the import path
import llama
import torch
import vit_g
from deepspeed_offload import ZeroOffload
from offload_rows import CLIP, ROWS, SETS, Setup
from offload_trace import write_trace
from processes import RowError, forwarded, run_row
from report import markdown_head, markdown_row, matching, option_parser, require_positive, write_json
from stopwatch import peak_bytes, reset_peak, wait

MODELS = {"vit-g": vit_g, "llama": llama}
NUMBERS = {"repeat": 10, "rounds": 3, "warm-up": 3}
FORWARDED = (*NUMBERS, *vit_g.SIZES, "device", "trace", "deepspeed", "model")


def host_bytes() -> tuple[int, int]:
    """Returns this process's resident memory and the machine's available memory."""

    def field(file: str, name: str) -> int:
        for line in pathlib.Path(file).read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        return 0

    return field("/proc/self/status", "VmRSS"), field("/proc/meminfo", "MemAvailable")


def backward(model: Any, net: Any, batch: torch.Tensor, setup: Setup, optimizer: Any = None) -> torch.Tensor:
    """`model` is the module that defines the loss of `net`."""
    with torch.autocast(batch.device.type, torch.bfloat16) if setup.amp else contextlib.nullcontext():
        loss = model.loss_of(net, batch)
    if hasattr(optimizer, "backward"):
        optimizer.backward(loss)  # DeepSpeed's engine
    else:
        loss.backward()
    return loss.detach()


def finish(optimizer: Any, device: torch.device) -> None:
    if hasattr(optimizer, "wait"):
        optimizer.wait()  # no stream waits for the work on the host
    wait(device)


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    setup, device = ROWS[name], torch.device(options.device)
    if options.deepspeed:
        sys.path.insert(0, options.deepspeed)
    dtype = torch.float32 if setup.amp else torch.bfloat16
    model = MODELS[options.model]
    net, batch = model.model(options, dtype), model.inputs(options, dtype)
    backward(model, net, batch, setup)  # loads torch's libraries before memory is read
    net.zero_grad()
    wait(device)
    resident, available = host_bytes()
    if setup.make is None:
        optimizer: Any = ZeroOffload(net, vit_g.LR, options.batch, CLIP if setup.clip else 0.0)
        called = optimizer.model
    else:
        optimizer = setup.make(net.parameters(), vit_g.LR)
        called = torch.compile(net) if setup.compiled else net
    if setup.attach:
        optimizer.attach(called)

    def step() -> torch.Tensor:
        loss = backward(model, called, batch, setup, optimizer)
        if setup.clip and setup.make is not None:
            torch.nn.utils.clip_grad_norm_(called.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    losses = [step() for _ in range(options.warm_up)]
    seconds = []
    for turn in range(options.rounds):
        finish(optimizer, device)
        if turn == 0:
            reset_peak(device)
        start = time.perf_counter()
        losses += [step() for _ in range(options.repeat)]
        finish(optimizer, device)
        seconds.append((time.perf_counter() - start) / options.repeat)
    peak = peak_bytes(device) / 1e9
    resident_now, available_now = host_bytes()
    if options.trace:
        write_trace(pathlib.Path(options.trace), name, net, step, lambda: finish(optimizer, device))
    return {
        "params": sum(param.numel() for param in net.parameters()),
        "seconds": statistics.median(seconds),
        "rounds": seconds,
        "peak_gb": peak,
        "host_gb": (resident_now - resident) / 1e9,
        "machine_gb": (available - available_now) / 1e9,
        "loss": losses[-1].item(),
    }


def _reason(error: str) -> str:
    _, missing, package = error.partition("PeerMissingError: ")
    return f"skipped: {package}" if missing else f"failed: {error}"


def cells(name: str, found: dict[str, Any]) -> list[str]:
    if "error" in found:
        return [name, _reason(found["error"]).replace("|", "/"), "", "", "", ""]
    spread = f"{min(found['rounds']):.3f} to {max(found['rounds']):.3f}"
    memory = [f"{found[key]:.2f}" for key in ("peak_gb", "host_gb", "machine_gb")]
    return [name, f"{found['seconds']:.3f} ({spread})", *memory, f"{found['loss']:.5f}"]


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("--rows", help="only rows whose name contains one of these, comma-separated (see --list)")
    add("--skip", help="skip rows whose name contains one of these, comma-separated")
    add("--list", action="store_true", help="print the names of the rows and exit")
    add("--device", default="cuda", help="cpu checks the script with a small model")
    for name, preset in NUMBERS.items():
        add(f"--{name}", type=int, default=preset, help=f"(default {preset})")
    add("--model", choices=list(MODELS), default="vit-g", help="(default vit-g)")
    for name in vit_g.SIZES:
        presets = ", ".join(f"{model} {module.SIZES[name]}" for model, module in MODELS.items())
        add(f"--{name}", type=int, help=f"size of the model (default: {presets})")
    add("--deepspeed", help="a folder that contains the package deepspeed and its dependencies")
    add("--time-limit", type=float, default=240.0, help="seconds for one row, start included (default 240)")
    add("--trace", help="a folder for Chrome traces of two more iterations of each row")
    add("--json", help="also write the results to this file, after every row")
    add("--one", choices=list(ROWS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name, preset in MODELS[options.model].SIZES.items():
        if getattr(options, name) is None:
            setattr(options, name, preset)
    require_positive(parser, options, *NUMBERS, *vit_g.SIZES)
    skipped = matching(ROWS, options.skip) if options.skip else []
    options.names = [name for name in matching(ROWS, options.rows) if name not in skipped]
    if not options.names:
        parser.error(f"--rows: {options.rows!r} leaves no row; --list prints them. Sets: {', '.join(SETS)}")
    if options.device == "cuda" and not options.list and not torch.cuda.is_available():
        parser.error("torch finds no GPU; --device cpu checks the script with a small model")
    return options


def main() -> int:
    options = parse_options()
    if options.list:
        print("\n".join(options.names))
        return 0
    if options.one:
        print(json.dumps(run(options.one, options)))
        return 0
    where = harness.device_name(options.device)
    counts = f"{options.repeat} iterations, median of {options.rounds} rounds"
    print(f"{where}, torch {torch.__version__}, {counts}\n")
    print(markdown_head(["row", "s/iteration", "peak GB", "host GB", "machine GB", "loss"]))
    results: list[dict[str, Any]] = []
    arguments = forwarded(options, FORWARDED)
    for name in options.names:
        try:
            found = run_row(__file__, ["--one", name, *arguments], options.time_limit)
        except RowError as error:
            found = {"error": str(error)}
        results.append({"row": name, **found})
        print(markdown_row(cells(name, found)), flush=True)
        write_json(options.json, {"device": where, "torch": torch.__version__, "rows": results})
    return 0


if __name__ == "__main__":
    sys.exit(main())
