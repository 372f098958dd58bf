"""Runs `octavo train` in several processes, until a time limit.

A run's folder shows whether the run is done, so a call continues where another stopped. A run that is stopped
(by SIGTERM, at the time limit) saves a checkpoint and resumes from it.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping, Sequence

import run_folder
from bdh_settings import Settings
from convergence_parts import records

ARMS: dict[str, dict[str, str]] = {
    "fp32": {"compute_dtype": "float32", "optimizer": "adamw"},
    "bf16 adamw": {"compute_dtype": "bfloat16", "optimizer": "adamw"},
    "bf16 adamw_8bit": {"compute_dtype": "bfloat16", "optimizer": "adamw_8bit"},
    "bf16 adamw_4bit": {"compute_dtype": "bfloat16", "optimizer": "adamw_4bit"},
}
DEFAULT = tuple(ARMS)  # the arms of `loss`; the arms below need a GPU with FP8
_FP8 = {"compute_dtype": "bfloat16", "use_fp8": "true"}
ARMS |= {
    "fp8 adamw": {**_FP8, "optimizer": "adamw"},
    "fp8 adamw_8bit": {**_FP8, "optimizer": "adamw_8bit"},
    "fp8 adamw_4bit": {**_FP8, "optimizer": "adamw_4bit"},
    "fp8 current adamw_8bit": {**_FP8, "optimizer": "adamw_8bit", "fp8.recipe": "current"},
}
SETTINGS = "settings.json"  # a file in the folder of the runs
GRACE = 120.0  # seconds for a checkpoint after SIGTERM
POLL = 0.05


@dataclasses.dataclass(frozen=True)
class Task:
    arm: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm.replace(' ', '-')}-seed{self.seed}"


def tasks(arms: Sequence[str], seeds: int) -> list[Task]:
    """Orders all arms of a seed before the next seed, so that an interrupted set is still balanced."""
    return [Task(arm, seed) for seed in range(seeds) for arm in arms]


def prepare(runs: pathlib.Path, settings: Settings, text: pathlib.Path, extra: Sequence[str]) -> pathlib.Path:
    """Returns the config file of a folder of runs. Raises ValueError if the folder has other settings."""
    runs.mkdir(parents=True, exist_ok=True)
    crc = zlib.crc32(text.read_bytes())
    given = {**settings.as_dict(), "text_crc": f"{crc:08x}", "extra": sorted(extra)}
    path = runs / SETTINGS
    if path.exists():
        records.check_settings(path, [{"settings": json.loads(path.read_text())}], given, "--runs")
    path.write_text(json.dumps(given, indent=1) + "\n")
    config = runs / "bdh.yaml"
    config.write_text(settings.config(text))
    return config


class Processes:
    """Processes of `octavo train`, one for each task, with a log file next to the run's folder."""

    def __init__(self, command: pathlib.Path, config: pathlib.Path, extra: Sequence[str]) -> None:
        self.command, self.config, self.extra = command, config, list(extra)
        self.runs = config.parent
        self.active: dict[Task, subprocess.Popen[bytes]] = {}

    def line(self, task: Task) -> list[str]:
        overrides: Mapping[str, object] = {
            **ARMS[task.arm],
            "training.seed": task.seed,
            "data.seed": task.seed,
            "output_dir": (self.runs / task.name).resolve(),
        }
        given = [f"{key}={value}" for key, value in overrides.items()]
        return [str(self.command), "train", str(self.config), *given, *self.extra]

    def begin(self, task: Task) -> None:
        with self.log(task).open("ab") as file:
            self.active[task] = subprocess.Popen(
                self.line(task), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )

    def log(self, task: Task) -> pathlib.Path:
        return self.runs / f"{task.name}.log"

    def ended(self) -> list[Task]:
        """Returns the tasks whose process has ended since the last call."""
        gone = [task for task, process in self.active.items() if process.poll() is not None]
        for task in gone:
            del self.active[task]
        return gone

    def stop(self) -> None:
        for process in self.active.values():
            process.terminate()
        end = time.monotonic() + GRACE
        for process in self.active.values():
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.active.clear()


def run(processes: Processes, todo: Sequence[Task], jobs: int, time_limit: float | None) -> list[Task]:
    """Runs the tasks until they end or the time is up. Returns the tasks whose process failed."""
    end = None if time_limit is None else time.monotonic() + time_limit
    waiting, failed = list(todo), []
    try:
        while waiting or processes.active:
            while waiting and len(processes.active) < jobs:
                processes.begin(waiting.pop(0))
            time.sleep(POLL)
            for task in processes.ended():
                found = run_folder.read(processes.runs / task.name)
                print(f"{task.name}: {found.reason}, loss {found.loss:.4f}", file=sys.stderr, flush=True)
                if not found.done:
                    failed.append(task)
            if end is not None and time.monotonic() >= end:
                left = len(waiting) + len(processes.active)
                print(f"time is up: {left} runs are left; the same call resumes them", file=sys.stderr)
                break
    finally:
        processes.stop()
    return failed
