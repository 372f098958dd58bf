"""Times steps of `octavo train` and of the reference with the same shapes, in one table."""

from __future__ import annotations

import json
import math
import pathlib
import shutil
import subprocess
import sys
from dataclasses import dataclass

import octavo_runs
import run_folder
from bdh_settings import Settings
from convergence_parts import report as shared

HEAD = "| | ms/step | tokens/s | peak GB | overhead |\n|---|---|---|---|---|"


@dataclass(frozen=True)
class Timing:
    side: str
    tokens_per_second: float = math.nan
    milliseconds: float = math.nan
    peak_gb: float | None = None
    overhead: float | None = None  # share of the time outside forward, backward and step
    error: str = ""

    def line(self) -> str:
        if self.error:
            return f"| {self.side} | {self.error} | | | |"
        peak = "" if self.peak_gb is None else f"{self.peak_gb:.2f}"
        overhead = "" if self.overhead is None else f"{100 * self.overhead:.2f}%"
        return (
            f"| {self.side} | {self.milliseconds:.1f} | {self.tokens_per_second:.0f} | {peak} | {overhead} |"
        )


def timing_of(side: str, run: run_folder.Run, warm_up: int) -> Timing:
    """Reads the metrics of a finished run."""
    if run.reason != "finished":
        return Timing(side, error=f"ended as {run.reason}")
    speed = run.tokens_per_second(warm_up)
    peak = None if run.peak_bytes is None else run.peak_bytes / 1e9
    return Timing(side, speed, 1000 * run.start["batch_tokens"] / speed, peak, run.overhead)


def last_line(text: str) -> str:
    return shared.last_line(text).replace("|", "/")


@dataclass(frozen=True)
class Octavo:
    """Times `octavo train` in new folders in `runs`."""

    command: pathlib.Path
    text: pathlib.Path
    runs: pathlib.Path
    settings: Settings
    warm_up: int
    repeat: int
    extra: tuple[str, ...] = ()

    def time(self, arm: str, checkpointing: bool) -> Timing:
        side = f"octavo {arm}" + (", gradient checkpointing" if checkpointing else "")
        run, error = self.run(side, arm, checkpointing)
        return Timing(side, error=error) if error else timing_of(side, run, self.warm_up)

    def run(self, side: str, arm: str, checkpointing: bool) -> tuple[run_folder.Run, str]:
        """Returns the run, and the reason if it has no end."""
        task = octavo_runs.Task(arm, 0)
        folder = self.runs / side.replace(" ", "-").replace(",", "")
        shutil.rmtree(folder, ignore_errors=True)
        # There are enough records for a median, and only one evaluation and checkpoint, at the end.
        overrides = {
            "gradient_checkpointing": str(checkpointing).lower(),
            "max_steps": self.warm_up + self.repeat,
            "warmup_steps": 0,
            "eval_steps": "null",
            "save_steps": "null",
            "logging_steps": max(1, self.repeat // 5),
        }
        given = [f"{key}={value}" for key, value in overrides.items()]
        config = octavo_runs.prepare(folder, self.settings, self.text, [*given, *self.extra])
        processes = octavo_runs.Processes(self.command, config, [*given, *self.extra])
        octavo_runs.run(processes, [task], 1, None)
        run = run_folder.read(folder / task.name)
        if run.reason is None:
            return run, last_line(processes.log(task).read_text(errors="replace"))
        return run, ""


def time_reference(
    checkout: pathlib.Path, mode: str, settings: Settings, warm_up: int, repeat: int, device: str | None
) -> Timing:
    """Runs reference.py in its own process, so that memory peaks do not mix."""
    side = f"reference {mode.replace('-', ' ')}"
    script = pathlib.Path(__file__).with_name("reference.py")
    flags = {"--mode": mode, "--warm-up": warm_up, "--repeat": repeat, "--reference": checkout}
    where = ("--device", device) if device is not None else ()
    shape = [f"--{name.replace('_', '-')}={value}" for name, value in settings.as_dict().items()]
    line = [
        sys.executable,
        str(script),
        "speed",
        "--json",
        *(str(word) for pair in flags.items() for word in pair),
        *where,
        *shape,
    ]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode != 0:
        return Timing(side, error=last_line(done.stderr))
    found = json.loads(done.stdout.splitlines()[-1])
    if "error" in found:
        return Timing(side, error=found["error"])
    return Timing(side, found["tokens_per_second"], found["ms"], found["peak_gb"])
