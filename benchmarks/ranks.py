"""Measures what ranks cost: a training without a process group, and with DDP, ZeRO-1 and ZeRO-2.

Trains a config with `octavo train`, without a group and then under torchrun with every strategy of --ways, in
turns (--rounds), with the same global batch. The table has the time of a step, the optimizer states of a
rank, the bytes and time of communication, and whether the final weights have the bits of the run without a
group. With several ranks, the run without a group does the micro-batches of all ranks, one after another.

octavo data make-text tales.txt --bytes 20M
python benchmarks/ranks.py examples/train/gpu.yaml data.train=tales.txt --folder runs/ranks
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from report import ROOT, markdown, option_parser

ALONE = "no group"
STRATEGIES = ("ddp", "zero1", "zero2")
LOGGED = 10  # steps between two records; the host waits for the device at each record
WARM_UP = 2 * LOGGED  # steps that are not timed

Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    step_ms: float  # median
    state_bytes: int
    sent: float  # bytes per step
    comm_ms: float
    waited_ms: float
    weights: str  # hash


def records_of(folder: Path) -> list[Record]:
    return [json.loads(each) for each in (folder / "metrics.jsonl").read_text().splitlines()]


def weights_of(folder: Path) -> str:
    return hashlib.sha256((folder / "latest" / "model.safetensors").read_bytes()).hexdigest()


def measured(folder: Path) -> Run:
    """Reads the log of a run."""
    records = records_of(folder)
    start = next(each for each in records if each["kind"] == "start")
    memory = next((each for each in records if each["kind"] == "memory"), None)
    steps = [each for each in records if each["kind"] == "train"]
    times = [
        (after["seconds"] - before["seconds"]) / (after["step"] - before["step"])
        for before, after in pairwise(steps)
        if before["step"] >= WARM_UP
    ]
    timed = [each for each in steps if each["step"] > WARM_UP]
    states = memory["owners"]["states"] if memory else start["state_bytes"]

    def mean(key: str) -> float:
        return statistics.mean(each.get(key, 0.0) for each in timed)

    return Run(
        step_ms=1e3 * statistics.median(times),
        state_bytes=states,
        sent=mean("comm_bytes"),
        comm_ms=1e3 * mean("comm_seconds"),
        waited_ms=1e3 * mean("comm_waited"),
        weights=weights_of(folder),
    )


def table(runs: dict[str, list[Run]]) -> str:
    """Returns a table of the fastest round of each strategy."""
    alone = min(runs[ALONE], key=lambda each: each.step_ms)
    titles = ["", "ms a step", "against no group", "states of a rank, MB", "sent a step, MB"]
    titles += ["communication, ms", "of it not hidden, ms", "weights"]
    rows = []
    for strategy, rounds in runs.items():
        best = min(rounds, key=lambda each: each.step_ms)
        times = [f"{best.step_ms:.2f}", f"{100 * (best.step_ms / alone.step_ms - 1):+.1f}%"]
        megabytes = [f"{best.state_bytes / 1e6:.1f}", f"{best.sent / 1e6:.1f}"]
        waits = [f"{best.comm_ms:.2f}", f"{best.waited_ms:.2f}"]
        same = "same bits" if best.weights == alone.weights else "other bits"
        rows.append([strategy, *times, *megabytes, *waits, same])
    return markdown(titles, rows)


def command_of(options: argparse.Namespace, strategy: str, folder: Path) -> list[str]:
    micro_batches = options.accumulation * (options.ranks if strategy == ALONE else 1)
    train = [
        options.command, "train", options.config, *options.settings, f"output_dir={folder}",
        f"max_steps={options.steps}", f"logging_steps={LOGGED}", f"eval_steps={options.steps}",
        f"save_steps={options.steps}", "max_eval_samples=8", f"gradient_accumulation_steps={micro_batches}",
    ]  # fmt: skip
    if strategy == ALONE:
        return train
    launcher = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python",
        "--nproc-per-node", str(options.ranks),
    ]  # fmt: skip
    return [*launcher, *train, f"parallel={strategy}"]


def train(options: argparse.Namespace, strategy: str, number: int) -> Run:
    folder = options.folder / f"{strategy.replace(' ', '_')}.{number}"
    shutil.rmtree(folder, ignore_errors=True)
    done = subprocess.run(command_of(options, strategy, folder), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{strategy}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    print(f"{folder}", file=sys.stderr)
    return measured(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("config")
    add("settings", nargs="*", help="key=value, for every run")
    add("--command", default=str(ROOT / "build/bin/octavo"))
    add("--folder", type=Path, required=True, help="folder of the runs; old runs are removed")
    add("--ways", default=",".join(STRATEGIES), help="strategies, comma-separated (default: all)")
    add("--ranks", type=int, default=1)
    add("--steps", type=int, default=80)
    add("--rounds", type=int, default=2)
    add("--accumulation", type=int, default=1, help="micro-batches of a rank in a step")
    options = parser.parse_args(arguments)
    if options.steps < WARM_UP + 2 * LOGGED:
        parser.error(f"--steps: got {options.steps}, expected {WARM_UP + 2 * LOGGED} or more")
    runs: dict[str, list[Run]] = {name: [] for name in (ALONE, *options.ways.split(","))}
    for number in range(options.rounds):
        for strategy, rounds in runs.items():
            rounds.append(train(options, strategy, number))
    print(table(runs))


if __name__ == "__main__":
    main()
