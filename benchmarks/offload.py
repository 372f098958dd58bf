"""ViT-g (1.1B) with its optimizer's states on the GPU, streamed through it, or stepped on the CPU.

The model of vit_g.py, or with --model llama that of llama.py, pure bf16 or AMP, eager or compiled, compared
with the offload of torchao and of DeepSpeed. Wall time over 10 iterations without a synchronize between them,
peak GPU memory, and what the optimizer takes of host memory. Each row runs in a process of its own; one that
fails says why in its place, and a package that is not installed is skipped by name. --deepspeed names a
folder that has DeepSpeed where it is not installed.

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

import harness  # first: it finds the package of this tree
import llama
import torch
import vit_g
from deepspeed_offload import ZeroOffload
from offload_rows import CLIP, ROWS, SETS, Way
from offload_trace import write_trace
from processes import RowError, run_row
from stopwatch import wait

MODELS = {"vit-g": vit_g, "llama": llama}
NUMBERS = {"repeat": 10, "rounds": 3, "warm-up": 3}


def host_bytes() -> tuple[int, int]:
    """This process's resident memory, and what the machine can still give."""

    def field(file: str, name: str) -> int:
        for line in pathlib.Path(file).read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        return 0

    return field("/proc/self/status", "VmRSS"), field("/proc/meminfo", "MemAvailable")


def backward(model: Any, net: Any, batch: torch.Tensor, way: Way, optimizer: Any = None) -> torch.Tensor:
    """`model`: the module that has the loss of `net`."""
    with torch.autocast(batch.device.type, torch.bfloat16) if way.amp else contextlib.nullcontext():
        loss = model.loss_of(net, batch)
    if hasattr(optimizer, "backward"):
        optimizer.backward(loss)  # DeepSpeed's engine
    else:
        loss.backward()
    return loss.detach()


def iteration(model: Any, net: Any, batch: torch.Tensor, optimizer: Any, way: Way) -> torch.Tensor:
    loss = backward(model, net, batch, way, optimizer)
    if way.clip and way.make is not None:
        torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
    optimizer.step()
    optimizer.zero_grad()
    return loss


def run(name: str, options: argparse.Namespace) -> dict[str, Any]:
    way, device = ROWS[name], torch.device(options.device)
    if options.deepspeed:
        sys.path.insert(0, options.deepspeed)
    dtype = torch.float32 if way.amp else torch.bfloat16
    model = MODELS[options.model]
    net, batch = model.model(options, dtype), model.inputs(options, dtype)
    backward(model, net, batch, way)  # loads torch's libraries before memory is read
    net.zero_grad()
    wait(device)
    resident, available = host_bytes()
    if way.make is None:
        optimizer: Any = ZeroOffload(net, vit_g.LR, options.batch, CLIP if way.clip else 0.0)
        called = optimizer.model
    else:
        optimizer = way.make(net.parameters(), vit_g.LR)
        called = torch.compile(net) if way.compiled else net
    if way.attach:
        optimizer.attach(called)

    def step() -> torch.Tensor:
        return iteration(model, called, batch, optimizer, way)

    def finish() -> None:
        if hasattr(optimizer, "wait"):
            optimizer.wait()  # work on the host that no stream knows
        wait(device)

    losses = [step() for _ in range(options.warm_up)]
    seconds = []
    for turn in range(options.rounds):
        finish()
        if turn == 0 and device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        start = time.perf_counter()
        losses += [step() for _ in range(options.repeat)]
        finish()
        seconds.append((time.perf_counter() - start) / options.repeat)
    peak = torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else 0.0
    resident_now, available_now = host_bytes()
    if options.trace:
        write_trace(pathlib.Path(options.trace), name, net, step, finish)
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


def cells(name: str, found: dict[str, Any]) -> str:
    way = ROWS[name]
    goal = f"{way.goal[0]:.3f}, {way.goal[1]:.1f}" if way.goal else ""
    if "error" in found:
        values = [_reason(found["error"]).replace("|", "/"), "", "", "", "", goal]
    else:
        spread = f"{min(found['rounds']):.3f} to {max(found['rounds']):.3f}"
        memory = [f"{found[key]:.2f}" for key in ("peak_gb", "host_gb", "machine_gb")]
        values = [f"{found['seconds']:.3f} ({spread})", *memory, f"{found['loss']:.5f}", goal]
    return "| " + " | ".join([name, *values]) + " |"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--rows", help="only those whose name contains one of these, comma-separated (see --list)")
    add("--skip", help="not those whose name contains one of these, comma-separated")
    add("--list", action="store_true", help="print the rows' names, run nothing")
    add("--device", default="cuda", help="cpu: a check of the script, with a small model")
    for name, preset in NUMBERS.items():
        add(f"--{name}", type=int, default=preset, help=f"(default {preset})")
    add("--model", choices=list(MODELS), default="vit-g", help="(default vit-g)")
    for name in vit_g.SIZES:
        presets = ", ".join(f"{model} {module.SIZES[name]}" for model, module in MODELS.items())
        add(f"--{name}", type=int, help=f"of the model (default: {presets})")
    add("--deepspeed", help="a folder that has the package deepspeed and those it needs")
    add("--time-limit", type=float, default=240.0, help="seconds for one row, start included (default 240)")
    add("--trace", help="a folder for Chrome traces of two more iterations of each row")
    add("--json", help="write the results there as well, after every row")
    add("--one", choices=list(ROWS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name, preset in MODELS[options.model].SIZES.items():
        if getattr(options, name) is None:
            setattr(options, name, preset)
    for name in (*NUMBERS, *vit_g.SIZES):
        if (value := getattr(options, name.replace("-", "_"))) < 1:
            parser.error(f"--{name}: got {value}, expected at least 1")
    wanted = (options.rows or "").split(",")
    unwanted = options.skip.split(",") if options.skip else []
    options.names = [
        name for name in ROWS if any(w in name for w in wanted) and not any(u in name for u in unwanted)
    ]
    if not options.names:
        parser.error(f"--rows: {options.rows!r} leaves no row; --list prints them. Sets: {', '.join(SETS)}")
    if options.device == "cuda" and not options.list and not torch.cuda.is_available():
        parser.error("torch finds no GPU; --device cpu checks the script, with a small model")
    return options


def main() -> int:
    options = parse_options()
    if options.list:
        print("\n".join(options.names))
        return 0
    if options.one:
        print(json.dumps(run(options.one, options)))
        return 0
    device = torch.device(options.device)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else harness.cpu_name()
    counts = f"{options.repeat} iterations, median of {options.rounds} rounds"
    print(f"{where}, torch {torch.__version__}, {counts}\n")
    head = ["row", "s/iteration", "peak GB", "host GB", "machine GB", "loss", "goal"]
    print("| " + " | ".join(head) + " |\n" + "|" + "---|" * len(head))
    results: list[dict[str, Any]] = []
    passed = [
        n
        for n in (*NUMBERS, *vit_g.SIZES, "device", "trace", "deepspeed", "model")
        if getattr(options, n.replace("-", "_"))
    ]
    for name in options.names:
        arguments = ["--one", name]
        for option in passed:
            arguments += [f"--{option}", str(getattr(options, option.replace("-", "_")))]
        try:
            found = run_row(__file__, arguments, options.time_limit)
        except RowError as error:
            found = {"error": str(error)}
        results.append({"row": name, **found})
        print(cells(name, found), flush=True)
        if options.json:
            whole = {"device": where, "torch": torch.__version__, "rows": results}
            pathlib.Path(options.json).write_text(json.dumps(whole, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
