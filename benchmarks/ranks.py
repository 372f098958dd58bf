"""What ranks cost: a training without a group, and the same global batch under DDP, ZeRO-1 and ZeRO-2.

Trains a config by `octavo train`, without a group and then under torchrun for every way of --ways, in turns
(--rounds), and prints a table: the time of a step, optimizer states of a rank, bytes and time of
communication, and whether the weights at the end have the bits of the run without a group. With several ranks
the run without a group does the passes of all of them, one after the other.

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

ROOT = Path(__file__).resolve().parent.parent
ALONE = "no group"
WAYS = ("ddp", "zero1", "zero2")
LOGGED = 10  # steps from one record to the next: at each the host waits for the device
WARM_UP = 2 * LOGGED  # steps that are not timed

Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    step_ms: float  # the median
    state_bytes: int
    sent: float  # bytes a step
    comm_ms: float
    waited_ms: float
    weights: str  # what they hash to


def records_of(folder: Path) -> list[Record]:
    return [json.loads(each) for each in (folder / "metrics.jsonl").read_text().splitlines()]


def weights_of(folder: Path) -> str:
    return hashlib.sha256((folder / "latest" / "model.safetensors").read_bytes()).hexdigest()


def measured(folder: Path) -> Run:
    """What the log of a run says."""
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
    """The fastest round of each way."""
    alone = min(runs[ALONE], key=lambda each: each.step_ms)
    lines = [
        "| | ms a step | against no group | states of a rank, MB | sent a step, MB | communication, ms | "
        "of it not hidden, ms | weights |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for way, rounds in runs.items():
        best = min(rounds, key=lambda each: each.step_ms)
        same = "same bits" if best.weights == alone.weights else "other bits"
        lines.append(
            f"| {way} | {best.step_ms:.2f} | {100 * (best.step_ms / alone.step_ms - 1):+.1f}% | "
            f"{best.state_bytes / 1e6:.1f} | {best.sent / 1e6:.1f} | {best.comm_ms:.2f} | "
            f"{best.waited_ms:.2f} | {same} |"
        )
    return "\n".join(lines)


def command_of(options: argparse.Namespace, way: str, folder: Path) -> list[str]:
    passes = options.accumulation * (options.ranks if way == ALONE else 1)
    train = [
        options.command, "train", options.config, *options.settings, f"output_dir={folder}",
        f"max_steps={options.steps}", f"logging_steps={LOGGED}", f"eval_steps={options.steps}",
        f"save_steps={options.steps}", "max_eval_samples=8", f"gradient_accumulation_steps={passes}",
    ]  # fmt: skip
    if way == ALONE:
        return train
    launcher = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python",
        "--nproc-per-node", str(options.ranks),
    ]  # fmt: skip
    return [*launcher, *train, f"parallel={way}"]


def train(options: argparse.Namespace, way: str, number: int) -> Run:
    folder = options.folder / f"{way.replace(' ', '_')}.{number}"
    shutil.rmtree(folder, ignore_errors=True)
    done = subprocess.run(command_of(options, way, folder), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{way}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    print(f"{folder}", file=sys.stderr)
    return measured(folder)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config")
    parser.add_argument("settings", nargs="*", help="key=value, for every run")
    parser.add_argument("--command", default=str(ROOT / "build/bin/octavo"))
    parser.add_argument("--folder", type=Path, required=True, help="for the runs; old ones are removed")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--accumulation", type=int, default=1, help="passes of a rank in a step")
    options = parser.parse_args(arguments)
    if options.steps < WARM_UP + 2 * LOGGED:
        parser.error(f"--steps: got {options.steps}, expected {WARM_UP + 2 * LOGGED} or more")
    ways = [ALONE, *options.ways.split(",")]
    runs: dict[str, list[Run]] = {way: [] for way in ways}
    for number in range(options.rounds):
        for way in ways:
            runs[way].append(train(options, way, number))
    print(table(runs))


if __name__ == "__main__":
    main()
