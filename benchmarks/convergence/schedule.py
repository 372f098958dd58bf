"""The order in which the convergence benchmark trains its runs: several concurrently, until a time limit."""

from __future__ import annotations

import dataclasses
import pathlib
import platform
import sys
import time
from collections.abc import Iterator, Sequence

import records
import torch
from arms import BAD
from lanes import Lane
from run_inputs import Corpus, SeedInputs, Settings


@dataclasses.dataclass(frozen=True)
class Task:
    seed: int
    beta2: float
    arm: str

    @property
    def key(self) -> records.Key:
        return self.arm, self.seed, self.beta2

    @property
    def lane(self) -> tuple[str, float]:
        return self.arm, self.beta2


def tasks(arms: Sequence[str], betas: Sequence[float], seeds: int, bad_seeds: int) -> list[Task]:
    """Orders all arms of a seed before the next seed, so that an interrupted file is still balanced."""
    return [
        Task(seed, beta2, arm)
        for seed in range(seeds)
        for beta2 in betas
        for arm in arms
        if arm != BAD or seed < bad_seeds
    ]


def rounds(todo: Sequence[Task], jobs: int) -> Iterator[list[Task]]:
    """Yields at most `jobs` tasks at a time, in order, each with a different lane."""
    start = 0
    while start < len(todo):
        chosen: list[Task] = []
        for task in todo[start : start + jobs]:
            if task.lane in [other.lane for other in chosen]:
                break
            chosen.append(task)
        start += len(chosen)
        yield chosen


class Deadline:
    def __init__(self, seconds: float | None) -> None:
        self.end = None if seconds is None else time.monotonic() + seconds

    def allows(self, seconds: float = 0.0) -> bool:
        return self.end is None or time.monotonic() + seconds < self.end


def train(lanes: Sequence[Lane], settings: Settings, deadline: Deadline) -> bool:
    """Runs all steps of all lanes, in turns. Returns False if the deadline passed before the end."""
    slots = {step: slot for slot, step in enumerate(settings.eval_steps)}
    before: list[torch.cuda.Event] = []
    for step in range(1, settings.steps + 1):
        for lane in lanes:
            lane.advance()
        if step not in slots:
            continue
        for lane in lanes:
            lane.evaluate(slots[step])
        # The host may be at most one evaluation ahead of the device, because the deadline is checked here.
        for event in before:
            event.synchronize()
        before = [lane.stream.record_event() for lane in lanes if lane.stream is not None]
        if step < settings.steps and not deadline.allows():
            return False
    return True


class Runner:
    """Trains tasks. Each lane trains all seeds of its arm, so that it captures its graph once."""

    def __init__(self, settings: Settings, tokens: torch.Tensor, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.corpus = Corpus(settings, tokens, device)
        self.lanes: dict[tuple[str, float], Lane] = {}
        self.inputs: tuple[int, SeedInputs] | None = None

    def load(self, task: Task) -> Lane:
        if self.inputs is None or self.inputs[0] != task.seed:
            self.inputs = task.seed, SeedInputs.of(self.settings, task.seed, len(self.corpus.train))
        if task.lane not in self.lanes:
            self.lanes[task.lane] = Lane(self.settings, self.corpus, task.arm, task.beta2, self.device)
        self.lanes[task.lane].load(*self.inputs)
        return self.lanes[task.lane]

    def run(self, todo: Sequence[Task], jobs: int, deadline: Deadline, results: pathlib.Path) -> int:
        """Returns the number of finished and written runs."""
        done, longest = 0, 0.0
        common = {
            "settings": dataclasses.asdict(self.settings),
            "python": platform.python_version(),
            "torch": torch.__version__,
        }
        for chosen in rounds(todo, jobs):
            if not deadline.allows(longest):
                break
            start = time.monotonic()
            lanes = [self.load(task) for task in chosen]
            loaded = time.monotonic()
            if not train(lanes, self.settings, deadline):
                break
            found = [lane.result() for lane in lanes]
            seconds = time.monotonic() - start
            for result in found:
                records.append(
                    results, {**result, "round_runs": len(found), "round_seconds": seconds, **common}
                )
            done, longest = done + len(found), max(longest, seconds)
            losses = ", ".join(f"{r['arm']} {r['beta2']:g} {r['loss']:.4f}" for r in found)
            timing = f"{seconds:.1f} s, {loaded - start:.1f} of them to load; {done} of {len(todo)} runs"
            print(f"seed {chosen[0].seed}: {losses} ({timing})", file=sys.stderr, flush=True)
        return done
