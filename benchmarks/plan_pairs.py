"""Compares plans with measurements on the local GPU: peak memory and time of a step, a row per setting.

BDH is trained for a few steps by `octavo train --dry-run`, which prints plan and measurement. The speech
model's steps are those of `octavo bench speech`; `octavo plan` plans them from a config of the same model and
clips.

    python benchmarks/plan_pairs.py --text tinyshakespeare.txt --command build-cuda/bin/octavo
    python benchmarks/plan_pairs.py --text x --only speech --measured-speech bf16.json --gpu h200
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from report import ROOT, markdown_head, markdown_row, option_parser, run_octavo


def parakeet_config() -> str:
    """Returns the config of docs/which_card.md, so that both plan the same model."""
    page = (ROOT / "docs/which_card.md").read_text(encoding="utf-8")
    block = re.search(r"```yaml\n(# parakeet\.yaml\n.*?)```", page, re.DOTALL)
    if block is None:
        raise ValueError("docs/which_card.md has no block that begins with # parakeet.yaml")
    return block[1]


BDH = (
    "model: {{name: bdh, n_layer: 6, n_embd: {width}, n_head: 4, dropout: 0.1}}\n"
    "data: {{train: {text}, block_size: 512, max_eval_samples: 16}}\n"
    "training: {{learning_rate: 1.0e-3, compute_dtype: bfloat16, per_device_eval_batch_size: 4,"
    " max_steps: 20}}\n"
)
# Width, and rows of a micro-batch with and without gradient checkpointing.
WIDTHS = ((256, 32, 32), (512, 32, 32), (1024, 16, 8))
LINE = re.compile(
    r"plan: ([\d.]+) (\w+), measured ([\d.]+) (\w+) \(([-+][\d.]+)%\); "
    r"([\d.]+) (\w+) a step, measured ([\d.]+) (\w+) \(([-+][\d.]+)%\)"
)
HEAD = markdown_head(["", "plan GB", "measured", "off", "plan ms", "measured", "off"])
Row = dict[str, Any]
UNITS = {"GB": 1.0, "MB": 1e-3, "ms": 1.0, "s": 1e3}


@dataclasses.dataclass(frozen=True)
class Pair:
    name: str
    planned_gb: float
    measured_gb: float
    planned_ms: float
    measured_ms: float

    @property
    def memory_off(self) -> float:
        return 100 * (self.planned_gb / self.measured_gb - 1)

    @property
    def time_off(self) -> float:
        return 100 * (self.planned_ms / self.measured_ms - 1)

    def line(self) -> str:
        memory = [f"{self.planned_gb:.2f}", f"{self.measured_gb:.2f}", f"{self.memory_off:+.1f}%"]
        time = [f"{self.planned_ms:.0f}", f"{self.measured_ms:.0f}", f"{self.time_off:+.0f}%"]
        return markdown_row([self.name, *memory, *time])


def pair_of(name: str, printed: str) -> Pair:
    """Reads the output of a dry run."""
    found = LINE.search(printed)
    if found is None:
        raise ValueError(f"{name}: the dry run printed no plan: {printed[-300:]!r}")
    texts = found.groups()
    planned, measured, planned_ms, measured_ms = (
        float(texts[at]) * UNITS[texts[at + 1]] for at in (0, 2, 5, 7)
    )
    return Pair(name, planned, measured, planned_ms, measured_ms)


def bdh_pairs(command: str, text: str, steps: int) -> Iterator[Pair]:
    for width, rows, plain_rows in WIDTHS:
        on, off = "gradient_checkpointing=true", "gradient_checkpointing=false"
        eight, half = "optimizer=adamw_8bit", rows // 2
        settings = {
            f"8bit, checkpointing, {rows} rows": [eight, on, f"batch_size={rows}"],
            f"8bit, {plain_rows} rows": [eight, off, f"batch_size={plain_rows}"],
            f"fp32 states, checkpointing, 2 micro-batches of {half} rows": [
                *("optimizer=adamw", on, f"batch_size={half}", "gradient_accumulation_steps=2")
            ],
            f"FP8, 4bit, checkpointing, {rows} rows": [
                *("optimizer=adamw_4bit", "use_fp8=true", on, f"batch_size={rows}")
            ],
        }
        with tempfile.TemporaryDirectory() as folder:
            config = pathlib.Path(folder) / "bdh.yaml"
            config.write_text(BDH.format(width=width, text=pathlib.Path(text).resolve()))
            for name, words in settings.items():
                line = [command, "train", str(config), *words, f"output_dir={folder}/run"]
                done = subprocess.run([*line, "--dry-run", str(steps)], capture_output=True, text=True)
                yield pair_of(f"BDH {width}, {name}", done.stdout + done.stderr)


def plan_of(command: str, config: pathlib.Path, row: Row, gpu: str, fp8: bool) -> Row:
    words = [f"optimizer={row['optimizer']}", f"batch_size={row['clips']}"]
    words += [f"gradient_checkpointing={str(row['checkpointing'] == 'on').lower()}"]
    # A selection by measured times could differ from run to run.
    words += [f"use_fp8={str(fp8).lower()}", "fp8.select=always"]
    found: Row = run_octavo(command, "plan", str(config), *words, "--gpu", gpu)
    return found


def speech_pairs(command: str, gpu: str, rounds: Iterable[Sequence[Row]], fp8: bool) -> Iterator[Pair]:
    """Plans the rows of `octavo bench speech --json` after each round. The times are medians over the rounds,
    because the host limits steps of few clips and its speed varies."""
    found: dict[tuple[object, ...], list[Pair]] = {}
    with tempfile.TemporaryDirectory() as folder:
        config = pathlib.Path(folder) / "speech.yaml"
        config.write_text(parakeet_config())
        for rows in rounds:
            for row in rows:
                plan = plan_of(command, config, row, gpu, fp8)
                name = f"Parakeet 0.6B, {row['clips']} clips, {row['optimizer']}" + (", FP8" if fp8 else "")
                pair = Pair(
                    name + (", checkpointing" if row["checkpointing"] == "on" else ""),
                    plan["memory"]["step"]["allocated"] / 1e9,
                    row["memory"]["peak"] / 1e9,
                    1e3 * plan["time"]["step_seconds"],
                    float(row["step_ms"]),
                )
                print(pair.line(), file=sys.stderr, flush=True)
                found.setdefault((row["optimizer"], row["checkpointing"], row["clips"]), []).append(pair)
    for same in found.values():
        yield dataclasses.replace(
            same[0],
            planned_ms=statistics.median(each.planned_ms for each in same),
            measured_ms=statistics.median(each.measured_ms for each in same),
        )


def speech_rounds(command: str, extra: Sequence[str], repeat: int) -> Iterator[Sequence[Row]]:
    for clips in ("8,16,32", *["8,16"] * (repeat - 1)):
        arguments = ("--clips", clips, "--steps", "6", "--checkpointing", "off,on")
        yield run_octavo(command, "bench", "speech", *arguments, *extra)["rows"]


def summary(pairs: Sequence[Pair]) -> str:
    memory = [abs(pair.memory_off) for pair in pairs]
    time = [abs(pair.time_off) for pair in pairs]
    return (
        f"{len(pairs)} pairs; memory: median {statistics.median(memory):.1f}%, worst {max(memory):.1f}%; "
        f"time: median {statistics.median(time):.0f}%, worst {max(time):.0f}%, "
        f"{sum(each > 15 for each in time)} beyond 15%"
    )


def run(arguments: Sequence[str] | None = None) -> list[Pair]:
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("--text", required=True, help="text for BDH")
    add("--command", default=str(ROOT / "build/bin/octavo"))
    add("--gpu", default="this", help="the GPU to plan speech for: the one that was measured")
    add("--steps", type=int, default=8, help="steps of a dry run (8)")
    add("--repeat", type=int, default=3, help="rounds of 8 and 16 clips, whose medians count (3)")
    add("--only", choices=("bdh", "speech"))
    add("--measured-speech", help="rows of an earlier `octavo bench speech --json`")
    add("--measured-fp8", help="rows of an earlier one with --fp8 delayed")
    options = parser.parse_args(arguments)
    pairs: list[Pair] = []
    print(HEAD, flush=True)

    def show(found: Iterator[Pair]) -> None:
        for pair in found:
            pairs.append(pair)
            print(pair.line(), flush=True)

    if options.only != "speech":
        show(bdh_pairs(options.command, options.text, options.steps))
    if options.only != "bdh":
        optimizers = ("--optimizer", "adamw_8bit,adamw,adamw_4bit")
        for path, extra, fp8 in (
            (options.measured_speech, optimizers, False),
            (options.measured_fp8, ("--fp8", "delayed", "--fp8-select", "always"), True),
        ):
            rounds: Iterable[Sequence[Row]] = (
                [json.loads(pathlib.Path(path).read_text())["rows"]]
                if path
                else speech_rounds(options.command, extra, options.repeat)
            )
            show(speech_pairs(options.command, options.gpu, rounds, fp8))
    print("\n" + summary(pairs))
    return pairs


if __name__ == "__main__":
    try:
        run()
    except ValueError as error:
        sys.exit(f"plan_pairs.py: {error}")
