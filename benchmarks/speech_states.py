r"""Measures the word error rate of a small recognizer by its optimizer's states: fp32, 8-bit, 4-bit and fp8.

Trains examples/train/speech.yaml for every optimizer and seed with `octavo train`, reads the evaluations from
each run's metrics.jsonl, and prints a table; --svg writes the curves. Runs that exist are not repeated.

octavo data make-speech speech --silence 0 --joined 0
octavo data make-tokenizer speech/tokenizer speech/train.jsonl --vocab-size 512
python benchmarks/speech_states.py --speech speech --folder runs/states --device cuda --jobs 12 \
    training.groups=[] encoder.conv_kernel_size=9 per_device_train_batch_size=16 warmup_steps=50 \
    max_steps=1500
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from report import ROOT, markdown, option_parser

sys.path.insert(0, str(Path(__file__).resolve().parent / "convergence"))

from panels_svg import LEFT, Style, column, document, line

COLOURS = {"adamw": "#222222", "adamw_8bit": "#0072b2", "adamw_4bit": "#d55e00", "adamw_fp8": "#009e73"}

Curve = dict[int, float]  # step to word error rate, in percent
Runs = dict[str, list[Curve]]  # by optimizer, a curve for each seed


def curve_of(metrics: Path) -> Curve:
    """Returns the evaluations of a run."""
    records = [json.loads(each) for each in metrics.read_text().splitlines()]
    return {each["step"]: 100 * each["wer"] for each in records if each["kind"] == "eval"}


def table(runs: Mapping[str, Sequence[Curve]]) -> str:
    """Returns the mean at every step, and the last values with their mean and deviation."""
    steps = sorted(next(iter(runs.values()))[0])
    rows = []
    for name, curves in runs.items():
        means = [f"{statistics.mean(curve[step] for curve in curves):.1f}" for step in steps]
        ends = [curve[steps[-1]] for curve in curves]
        spread = f"{statistics.stdev(ends):.1f}" if len(ends) > 1 else "-"
        each = ", ".join(f"{end:.1f}" for end in ends)
        rows.append([name, *means, each, f"{statistics.mean(ends):.1f}", spread])
    return markdown(
        ["optimizer", *(f"step {step}" for step in steps), "each seed", "mean", "deviation"], rows
    )


def svg(runs: Mapping[str, Sequence[Curve]]) -> str:
    """Draws the mean of each optimizer above, and every run below."""
    steps = sorted(next(iter(runs.values()))[0])
    highest = max(max(curve.values()) for curves in runs.values() for curve in curves)
    styles = {name: Style(COLOURS.get(name, "#cc3377")) for name in runs}
    labels = {"WER %, mean": "g", "WER %, each seed": "g"}
    panels, parts = column(LEFT, steps[-1], [(0, highest * 1.03)] * 2, labels)
    for row, panel in enumerate(panels):
        for name, curves in runs.items():
            shown = [{s: statistics.mean(c[s] for c in curves) for s in steps}] if row == 0 else curves
            lines = [[each[step] for step in steps] for each in shown]
            parts += [line(panel, steps, values, styles[name], f"panel{row}") for values in lines]
    return document(parts, styles, 1)


def train(options: argparse.Namespace, optimizer: str, seed: int) -> Curve:
    """Trains unless the run exists; returns its evaluations."""
    folder = options.folder / f"{optimizer}.{seed}"
    speech = options.speech
    if not (folder / "report.html").exists():
        command = [
            options.command, "train", str(ROOT / "examples/train/speech.yaml"),
            f"data.train_manifest={speech}/train.jsonl", f"data.val_manifest={speech}/val.jsonl",
            f"model.tokenizer.dir={options.tokenizer or f'{speech}/tokenizer'}", f"output_dir={folder}",
            f"optimizer={optimizer}", f"training.seed={seed}", f"data.seed={seed}",
            f"device={options.device}", f"eval_steps={options.eval_steps}", *options.settings,
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True)
        print(f"{folder}", file=sys.stderr)
    return curve_of(folder / "metrics.jsonl")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("--command", default=str(ROOT / "build/bin/octavo"))
    add("--speech", type=Path, required=True, help="a folder of octavo data make-speech")
    add("--tokenizer", default="", help="its folder (default: `tokenizer` in the folder of --speech)")
    add("--folder", type=Path, required=True, help="folder of the runs")
    add("--optimizers", default=",".join(COLOURS))
    add("--seeds", type=int, default=3)
    add("--device", default="auto")
    add("--eval-steps", type=int, default=250)
    add("--jobs", type=int, default=1, help="concurrent runs")
    add("--svg", type=Path, help="file of the curves")
    add("settings", nargs="*", help="key=value, for every run")
    options = parser.parse_args(arguments)
    names = options.optimizers.split(",")
    with ThreadPoolExecutor(options.jobs) as pool:
        made = {
            name: [pool.submit(train, options, name, seed) for seed in range(1, options.seeds + 1)]
            for name in names
        }
        runs: Runs = {name: [each.result() for each in curves] for name, curves in made.items()}
    print(table(runs))
    if options.svg:
        options.svg.write_text(svg(runs))


if __name__ == "__main__":
    main()
