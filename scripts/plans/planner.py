"""Plans by the command, and the measured figures of docs/benchmarks.md beside them.

A plan is `octavo plan CONFIG --gpu NAME key=value ... --json`. Each is made once: tables ask for the same
ones. The configs name a text beside them, which the command writes.
"""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
from collections.abc import Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "docs" / "benchmarks.md"
CONFIGS = {
    "bdh": """\
# bdh.yaml
model: {name: bdh, n_layer: 6, n_embd: 512, n_head: 4, dropout: 0.1}
data: {train: tales.txt, block_size: 512}
training: {learning_rate: 1.0e-3, compute_dtype: bfloat16, max_steps: 20}
""",
    "parakeet": """\
# parakeet.yaml
model:
  name: fastconformer
  vocab_size: 8192
  encoder: {feat_in: 128, subsampling_conv_channels: 256, n_layers: 24, d_model: 1024, n_heads: 8}
  decoder: {pred_hidden: 640, pred_rnn_layers: 2}
  joint: {joint_hidden: 640}
data: {generator: {clips: 256, validation_clips: 8, seconds: 20, tokens: 70}}
training: {learning_rate: 1.0e-4, compute_dtype: bfloat16, max_steps: 30}
""",
}
BATCH = re.compile(r"batch_size=(\d+) fits")


class Plan:
    """What a table needs of the command's JSON. Memory is in GB, 10^9 bytes."""

    def __init__(self, found: dict[str, Any]) -> None:
        memory, time = found["memory"], found["time"]
        self.owners = {name: size / 1e9 for name, size in memory["owners"].items()}
        self.peak: float = memory["allocated"] / 1e9
        self.total: float = memory["total"] / 1e9
        self.host: float = memory["host"] / 1e9
        self.fits: bool = memory["fits"]
        self.step_ms: float = 1e3 * time["step_seconds"]
        self.exposed_ms: float = 1e3 * time["exposed_seconds"]
        self.rate: float = time.get("clips_per_second") or time["tokens_per_second"]
        self.solution: str = found.get("solution", {}).get("text", "")

    @property
    def model(self) -> float:
        return self.owners["weights"] + self.owners["master bits"]


class Planner:
    def __init__(self, command: str, folder: pathlib.Path) -> None:
        self.command, self.folder = command, folder
        self.made: dict[tuple[str, ...], Plan] = {}
        for name, text in CONFIGS.items():
            (folder / f"{name}.yaml").write_text(text)
        self._octavo("data", "make-text", "tales.txt", "--bytes", "2M")

    def _octavo(self, *words: str) -> str:
        done = subprocess.run([self.command, *words], cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise ValueError(f"octavo {' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def plan(self, config: str, gpu: str, *words: str, gpus: int = 1, solve: str = "") -> Plan:
        """`words`: settings as the command takes them, several in one text too."""
        settings = [setting for each in words for setting in each.split()]
        line = ["plan", f"{config}.yaml", *settings, "--gpu", gpu, "--json"]
        line += ["--num-gpus", str(gpus)] if gpus > 1 else []
        line += ["--solve", solve] if solve else []
        if tuple(line) not in self.made:
            self.made[tuple(line)] = Plan(json.loads(self._octavo(*line)))
        return self.made[tuple(line)]

    def largest(self, config: str, gpu: str, *words: str) -> int:
        """The largest batch that fits; 0 where none does."""
        solution = self.plan(config, gpu, *words, solve="batch").solution
        found = BATCH.search(solution)
        if found is None and "does not fit" not in solution:
            raise ValueError(f"octavo plan --solve batch: {solution!r} is no answer")
        return int(found[1]) if found else 0


def rows_of(text: str, head: str) -> list[list[str]]:
    """The cells of the table whose first line begins so, without backticks and stars."""
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith(head)), None)
    if start is None:
        raise ValueError(f"no table begins with {head!r}")
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([re.sub(r"[`*]", "", cell).strip() for cell in line.strip().strip("|").split("|")])
    return rows


def measured(head: str, key: Sequence[str], columns: Sequence[int]) -> list[str]:
    """Cells of the row of benchmarks.md that begins with `key`; empty where it was not measured."""
    for row in rows_of(BENCHMARKS.read_text(), head):
        if row[: len(key)] == list(key):
            return [row[column].removesuffix(" GB") for column in columns]
    return [""] * len(columns)
