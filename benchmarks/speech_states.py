r"""The word error rate of a small recognizer by its optimizer's states: fp32, 8-bit, 4-bit and fp8.

Trains examples/train/speech.yaml for every optimizer and seed by `octavo train`, reads the evaluations from
each run's metrics.jsonl, and prints a table; --svg writes the curves. A run that is there is not made again.

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

sys.path.insert(0, str(Path(__file__).resolve().parent / "convergence"))

from panels_svg import GAP, HEIGHT, LEFT, TOP, WIDTH, Panel, Style, clip, document, frame, line

ROOT = Path(__file__).resolve().parent.parent
COLOURS = {"adamw": "#222222", "adamw_8bit": "#0072b2", "adamw_4bit": "#d55e00", "adamw_fp8": "#009e73"}

Curve = dict[int, float]  # step to word error rate, in percent
Runs = dict[str, list[Curve]]  # by optimizer, a curve for each seed


def curve_of(metrics: Path) -> Curve:
    """The evaluations of a run."""
    records = [json.loads(each) for each in metrics.read_text().splitlines()]
    return {each["step"]: 100 * each["wer"] for each in records if each["kind"] == "eval"}


def table(runs: Mapping[str, Sequence[Curve]]) -> str:
    """The mean at every step, and the ends with their mean and deviation."""
    steps = sorted(next(iter(runs.values()))[0])
    lines = [
        "| optimizer | " + " | ".join(f"step {step}" for step in steps) + " | each seed | mean | deviation |",
        "|---" * (len(steps) + 4) + "|",
    ]
    for name, curves in runs.items():
        means = [statistics.mean(curve[step] for curve in curves) for step in steps]
        ends = [curve[steps[-1]] for curve in curves]
        spread = f"{statistics.stdev(ends):.1f}" if len(ends) > 1 else "-"
        cells = [f"{mean:.1f}" for mean in means] + [", ".join(f"{end:.1f}" for end in ends)]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {statistics.mean(ends):.1f} | {spread} |")
    return "\n".join(lines)


def svg(runs: Mapping[str, Sequence[Curve]]) -> str:
    """Above the mean of each optimizer, below every run."""
    steps = sorted(next(iter(runs.values()))[0])
    highest = max(max(curve.values()) for curves in runs.values() for curve in curves)
    styles = {name: Style(COLOURS.get(name, "#cc3377")) for name in runs}
    parts: list[str] = []
    for row, label in enumerate(("WER %, mean", "WER %, each seed")):
        panel = Panel(LEFT, TOP + row * (HEIGHT + GAP), WIDTH, HEIGHT, (0, steps[-1]), (0, highest * 1.03))
        parts += [*frame(panel, label, lambda value: f"{value:g}"), clip(panel, f"panel{row}")]
        for name, curves in runs.items():
            shown = [{s: statistics.mean(c[s] for c in curves) for s in steps}] if row == 0 else curves
            parts += [
                line(panel, steps, [each[s] for s in steps], styles[name], f"panel{row}") for each in shown
            ]
    return document(parts, styles, 1)


def train(options: argparse.Namespace, optimizer: str, seed: int) -> Curve:
    """One run, unless its evaluations are there."""
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--command", default=str(ROOT / "build/bin/octavo"))
    parser.add_argument("--speech", type=Path, required=True, help="a folder of octavo data make-speech")
    parser.add_argument(
        "--tokenizer", default="", help="its folder; `tokenizer` in that of the speech unless given"
    )
    parser.add_argument("--folder", type=Path, required=True, help="for the runs")
    parser.add_argument("--optimizers", default=",".join(COLOURS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--eval-steps", type=int, default=250)
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--svg", type=Path)
    parser.add_argument("settings", nargs="*", help="key=value, for every run")
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
