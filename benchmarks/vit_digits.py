"""Measures the accuracy of a small vision transformer with each optimizer, from scratch and in paired seeds.

The data is scikit-learn's handwritten digits, 1,797 images of 8 x 8 pixels: 60% to train, 10% to choose the
learning rate, 30% to test. A seed determines the weights, the order and the shifts of the images, which are
equal for all optimizers. The script takes minutes on a CPU and needs scikit-learn.

python benchmarks/vit_digits.py --choose-lr 1e-3,3e-3,6e-3 --seeds 2 --epochs 30
python benchmarks/vit_digits.py --seeds 3 --json found.json
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from dataclasses import asdict, dataclass
from typing import Any

import harness  # must be first: it adds the package of this tree to the import path
import makers
import torch
import vit_h
from classification import Images, Training, accuracy, train
from report import markdown_head, markdown_row, numbers, option_parser, require_positive, write_json
from torch import nn
from torch.nn import functional as fn
from vit_model import Config, VisionTransformer

CONFIG = Config(layers=3, width=64, heads=4, image=8, patch=2, classes=10)
LR, EPOCHS, BATCH = 3e-3, 20, 64  # the rate was chosen with torch fused, on the validation images
BACKGROUND = -1.0
FIRST_CHOOSING_SEED = 1000  # the reported runs have other seeds than the choice of the learning rate
SHARES = (0.6, 0.1)  # training and validation; the rest is the test


@dataclass(frozen=True)
class Digits:
    training: Images
    validation: Images
    test: Images


@dataclass
class Run:
    optimizer: str
    seed: int
    lr: float
    loss: float
    validation: float
    test: float


def split(images: Images) -> Digits:
    rows = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    first = int(SHARES[0] * len(images))
    second = first + int(SHARES[1] * len(images))
    return Digits(*(images.select(part) for part in (rows[:first], rows[first:second], rows[second:])))


def load_digits() -> Digits:
    """Returns scikit-learn's images, from -1 to 1, with three equal channels."""
    found = makers.imported("sklearn.datasets").load_digits()
    pixels = torch.from_numpy(found.images).float() / 8 + BACKGROUND
    return split(Images(pixels[:, None].expand(-1, 3, -1, -1).contiguous(), torch.from_numpy(found.target)))


def make_model(seed: int) -> Any:
    """Returns the transformer of vit_model.py with larger weights: its own suit a width of 1280."""
    torch.manual_seed(seed)
    model = VisionTransformer(CONFIG)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    nn.init.normal_(model.positions, std=0.5)
    return model


def shifted(pixels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Moves every image by up to one pixel in each direction, and fills the border with background."""
    moves = torch.randint(3, (len(pixels), 2), generator=generator).tolist()
    padded, edge = fn.pad(pixels, (1, 1, 1, 1), value=BACKGROUND), CONFIG.image
    moved = [image[:, y : y + edge, x : x + edge] for image, (y, x) in zip(padded, moves, strict=True)]
    return torch.stack(moved)


def run(name: str, seed: int, lr: float, digits: Digits, options: argparse.Namespace) -> Run:
    device = torch.device(options.device)
    training = Training(
        options.epochs, options.batch, device, lambda pixels: pixels.to(device), not options.fp32, shifted
    )
    model = make_model(seed).to(device)
    optimizer = vit_h.ROWS[name](model.parameters(), lr)
    done = train(model, optimizer, digits.training, seed, training)
    validation, test = (accuracy(model, part, training) for part in (digits.validation, digits.test))
    return Run(name, seed, lr, done.loss, validation, test)


def difference(runs: list[Run], base: list[Run]) -> str:
    """Returns the mean difference of paired seeds in percentage points, and its standard error."""
    others = {each.seed: each.test for each in base}
    paired = [each.test - others[each.seed] for each in runs if each.seed in others]
    if not paired:
        return "-"
    mean = f"{statistics.mean(paired):+.2f}"
    if len(paired) < 2:
        return mean
    return f"{mean} ± {statistics.stdev(paired) / math.sqrt(len(paired)):.2f}"


def cells(name: str, runs: list[Run], base: list[Run]) -> list[str]:
    tests = [each.test for each in runs]
    return [
        name,
        f"{statistics.mean(tests):.2f}",
        f"{min(tests):.2f} to {max(tests):.2f}",
        "-" if name == vit_h.BASE else difference(runs, base),
        f"{statistics.mean(each.loss for each in runs):.4f}",
    ]


def choose(digits: Digits, options: argparse.Namespace) -> int:
    """Prints the validation accuracy of torch's AdamW for every learning rate of --choose-lr."""
    print(markdown_head(["learning rate", "validation accuracy %", "range", "training loss"]))
    for lr in options.choose_lr:
        seeds = range(FIRST_CHOOSING_SEED, FIRST_CHOOSING_SEED + options.seeds)
        runs = [run(vit_h.BASE, seed, lr, digits, options) for seed in seeds]
        found = [each.validation for each in runs]
        loss = statistics.mean(each.loss for each in runs)
        spread = f"{min(found):.2f} to {max(found):.2f}"
        print(markdown_row([f"{lr:g}", f"{statistics.mean(found):.2f}", spread, f"{loss:.4f}"]), flush=True)
    return 0


def compare(digits: Digits, options: argparse.Namespace) -> int:
    """Trains all seeds of one optimizer after another, and prints the row of each optimizer."""
    head = ["optimizer", "test accuracy %", "range", f"points from {vit_h.BASE} ± s.e.", "training loss"]
    print(markdown_head(head))
    runs: dict[str, list[Run]] = {}
    notes: list[str] = []
    for name in options.names:
        try:
            runs[name] = [
                run(name, seed, options.lr, digits, options)
                for seed in range(options.first_seed, options.first_seed + options.seeds)
            ]
        except Exception as error:  # a peer may fail in any way, and the others still count
            notes.append(makers.failure(name, error))
        else:
            print(markdown_row(cells(name, runs[name], runs.get(vit_h.BASE, []))), flush=True)
    print("\n" + "\n".join(notes))
    found = {name: [asdict(each) for each in each_runs] for name, each_runs in runs.items()}
    write_json(options.json, {"rows": found, "notes": notes})
    return 0 if runs and not any(note.startswith("failed: octavo") for note in notes) else 1


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("--rows", help=vit_h.ROWS_HELP)
    add("--seeds", type=int, default=3, help="runs of each optimizer (default 3)")
    add("--first-seed", type=int, default=0, help="(default 0)")
    add("--lr", type=float, default=LR, help=f"learning rate of all rows (default {LR})")
    add("--choose-lr", help="train only torch fused, with these comma-separated rates: 1e-3,3e-3")
    add("--epochs", type=int, default=EPOCHS, help=f"(default {EPOCHS})")
    add("--batch", type=int, default=BATCH, help=f"images (default {BATCH})")
    add("--fp32", action="store_true", help="train in fp32 (default: autocast to bf16)")
    add("--threads", type=int, default=1, help="threads of torch on a CPU (default 1)")
    add("--device", default="cpu", help="(default cpu)")
    add("--json", help="also write the results to this file")
    options = parser.parse_args()
    require_positive(parser, options, "seeds", "epochs", "batch", "threads")
    try:
        options.choose_lr = numbers(options.choose_lr or "")
    except ValueError:
        parser.error(f"--choose-lr: got {options.choose_lr!r}, expected numbers: 1e-3,3e-3")
    options.names = vit_h.names_of(options.rows, parser)
    return options


def main() -> int:
    options = parse_options()
    torch.set_num_threads(options.threads)
    try:
        digits = load_digits()
    except makers.PeerMissingError as missing:
        print(f"vit_digits.py needs scikit-learn (pip install scikit-learn): {missing}", file=sys.stderr)
        return 1
    where = harness.device_name(options.device)
    counts = f"{len(digits.training)} images trained on, {len(digits.test)} tested on"
    settings = f"{options.seeds} seeds, {options.epochs} epochs, batch {options.batch}"
    precision = "fp32" if options.fp32 else "bf16 autocast"
    print(f"{where}, torch {torch.__version__}, {precision}, {settings}, {counts}\n")
    return choose(digits, options) if options.choose_lr else compare(digits, options)


if __name__ == "__main__":
    sys.exit(main())
