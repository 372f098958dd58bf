"""Compares AdamW's held-out loss in each state format with that of fp32 states, at several learning rates.

Two tasks train, at every learning rate and beta2 and with every seed:

- zipf: the language model of benchmarks/language_model.py (50,000 words, four GRU layers, fp32), 500 steps.
  The held-out loss is that of 40 more batches of the same process.
- char: the character GPT of gpt.py on --text, without dropout, 600 steps. The held-out loss is that of the
  last tenth of the text.

All formats of a seed start with the same weights and get the same batches. The format `torch` is torch's
fused AdamW: its difference is the effect of other roundings. `run` trains the runs that the results file does
not contain, and can be stopped and called again. `report` prints the tables from the file alone.

python benchmarks/convergence/formats.py run --text tinyshakespeare.txt --results formats.jsonl
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import math
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import gpt
import records
import torch
from arms import NULL, REFERENCE, STATES, Arm
from run_inputs import DTYPES, Corpus, SeedInputs, Settings, read_text
from schedule import Deadline
from summary import LABELS, rank
from torch import Tensor
from torch.nn import functional as fn

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))

from language_model import LanguageModel, make_words
from report import markdown, numbers, option_parser, require_positive, some_of
from stopwatch import release

HELD_OUT = 40  # batches of held-out words
WARM_UPS = 2  # eager steps before the capture
FORMATS = (*STATES, NULL)
DEFAULT_FORMATS = [REFERENCE, NULL, "8bit", "fp8", "4bit", "fp4", "fp3"]
KEY = ("task", "state", "beta2", "lr", "seed")  # the fields of a record that identify its run
Key = tuple[str, str, float, float, int]
SIZES = ("vocabulary", "layers", "heads", "width", "block", "batch", "steps", "warm_up")
# The settings that two runs must share to be compared.
SHARED = (*SIZES, "text_crc", "precision", "device")
FIXED: dict[str, Any] = {"weight_decay": 0.0, "dropout": 0.0}
# The vocabulary of char is that of the text; zipf has no heads and no text.
TASKS = {
    "zipf": Settings("", 50_000, 4, 0, 512, 32, 16, steps=500, warm_up=50, precision="fp32", **FIXED),
    "char": Settings("", 0, 6, 6, 384, 256, 64, steps=600, warm_up=100, **FIXED),
}


@dataclasses.dataclass(frozen=True)
class Model:
    """The initial parameters of a seed with its losses."""

    parameters: list[Tensor]
    train_loss: Callable[[Tensor], Tensor]  # the argument is the index of the step, a tensor of one element
    held_out_loss: Callable[[], float]


def zipf_model(settings: Settings, device: torch.device, seed: int) -> Model:
    torch.manual_seed(seed)
    with device:
        model = LanguageModel(settings.vocabulary, settings.width, settings.layers)
    steps, batch, length = settings.steps, settings.batch, settings.block
    words = make_words(settings.vocabulary, steps + HELD_OUT, batch, length, 1000 + seed).to(device)

    def loss(batch: Tensor) -> Tensor:
        return fn.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def held_out_loss() -> float:
        return statistics.fmean(float(loss(batch)) for batch in words[steps:])

    return Model(list(model.parameters()), lambda at: loss(words.index_select(0, at)[0]), held_out_loss)


def char_model(settings: Settings, corpus: Corpus, device: torch.device, seed: int) -> Model:
    inputs = SeedInputs.of(settings, seed, len(corpus.train))
    parameters = [p.to(device).requires_grad_() for p in inputs.parameters]
    offsets, columns = inputs.offsets.to(device), torch.arange(settings.block + 1, device=device)

    def loss(windows: Tensor) -> Tensor:
        copies = [p.to(DTYPES[settings.precision]) for p in parameters]
        return gpt.loss(settings.shape, copies, windows, None)

    def train_loss(at: Tensor) -> Tensor:
        return loss(corpus.train[offsets.index_select(0, at)[0][:, None] + columns])

    def held_out_loss() -> float:
        parts = corpus.validation.split(settings.batch)
        return sum(float(loss(part)) * len(part) for part in parts) / len(corpus.validation)

    return Model(parameters, train_loss, held_out_loss)


def make_task(name: str, options: argparse.Namespace) -> tuple[Settings, Callable[[int], Model]]:
    """Returns the settings of a task, and a function that makes the model of a seed."""
    device, on_gpu = options.device, options.device.type == "cuda"
    changes: dict[str, Any] = {size: given for size in SIZES if (given := getattr(options, size)) is not None}
    changes["device"] = torch.cuda.get_device_name(device) if on_gpu else "cpu"
    if name == "zipf":
        settings = dataclasses.replace(TASKS[name], **{**changes, "heads": 0})
        return settings, functools.partial(zipf_model, settings, device)
    tokens, changes["vocabulary"], changes["text_crc"] = read_text(options.text.read_bytes())
    changes["precision"] = options.precision or ("bf16" if on_gpu else "fp32")
    settings = dataclasses.replace(TASKS[name], **changes)
    return settings, functools.partial(char_model, settings, Corpus(settings, tokens, device), device)


def learning_rates(task: str, settings: Settings, lr: float) -> Tensor:
    """Returns the rate of each step: a linear rise to lr, for char multiplied by half a cosine down to 0."""
    step = torch.arange(settings.steps, dtype=torch.float64)
    rates = lr * ((step + 1) / settings.warm_up).clamp(max=1)
    if task == "char":
        rates *= 0.5 * (1 + torch.cos(math.pi * step / settings.steps))
    return rates.float()


def train(model: Model, state: str, rates: Tensor, beta2: float, seed: int) -> None:
    """Trains one step for each learning rate. On a GPU the step is a CUDA graph."""
    device = model.parameters[0].device
    on_gpu = device.type == "cuda"
    rates, lr = rates.to(device), torch.zeros((), device=device)
    at = torch.zeros(1, dtype=torch.int64, device=device)
    options = {"beta2": beta2, "weight_decay": 0.0, "lr": lr, "graph": on_gpu, "seed": seed}
    arm = Arm(state, model.parameters, **options)

    def step() -> None:
        for parameter in model.parameters:
            parameter.grad = None
        model.train_loss(at).backward()
        lr.copy_(rates.index_select(0, at)[0])
        arm.step()
        at.add_(1)

    if not on_gpu:
        for _ in range(len(rates)):
            step()
        return

    initial = [parameter.detach().clone() for parameter in model.parameters]

    def restart() -> None:
        for parameter, value in zip(model.parameters, initial, strict=True):
            parameter.data.copy_(value)
        at.zero_()
        arm.reset()

    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(WARM_UPS):
            step()
            restart()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        step()
    for _ in range(len(rates)):
        graph.replay()
    torch.cuda.synchronize()


def key_of(record: records.Record) -> Key:
    task, state, beta2, lr, seed = (record[name] for name in KEY)
    return task, state, beta2, lr, seed


def run(options: argparse.Namespace) -> None:
    known, deadline = records.load(options.results), Deadline(options.time_limit)
    if options.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    tasks = {name: make_task(name, options) for name in options.tasks}
    shared = {name: {key: getattr(settings, key) for key in SHARED} for name, (settings, _) in tasks.items()}
    for name, settings in shared.items():
        mine = [record for record in known if record["task"] == name]
        records.check_settings(options.results, mine, settings)
    # All formats of a seed are before the next seed, so that an interrupted file is balanced.
    seeds = range(options.seeds)
    order = itertools.product(seeds, options.tasks, options.beta2, options.lrs, options.formats)
    wanted = [(task, state, beta2, lr, seed) for seed, task, beta2, lr, state in order]
    finished = set(map(key_of, known))
    todo = [key for key in wanted if key not in finished]
    print(f"{len(wanted) - len(todo)} of {len(wanted)} runs are done", file=sys.stderr)
    longest = 0.0
    for done, key in enumerate(todo):
        if not deadline.allows(longest):
            left = len(todo) - done
            print(f"time is up: {left} runs are left; the same call resumes them", file=sys.stderr)
            return
        start = time.monotonic()
        task, state, beta2, lr, seed = key
        settings, make_model = tasks[task]
        model = make_model(seed)
        train(model, state, learning_rates(task, settings, lr), beta2, seed)
        with torch.no_grad():
            loss = model.held_out_loss()
        del model
        release(options.device)
        seconds = time.monotonic() - start
        longest = max(longest, seconds)
        about = {"seconds": seconds, "torch": torch.__version__, "settings": shared[task]}
        records.append(options.results, {**dict(zip(KEY, key, strict=True)), "loss": loss, **about})
        timing = f"{seconds:.1f} s; {done + 1} of {len(todo)} runs"
        print(f"{task} {state} beta2 {beta2:g} lr {lr:g} seed {seed}: {loss:.4f} ({timing})", file=sys.stderr)


def cell(values: Sequence[float], form: str) -> str:
    """Returns the mean, and the value of each seed in parentheses; n/a for a run that diverged."""
    if not values:
        return "-"
    mean, *each = ("n/a" if math.isnan(v) else format(v, form) for v in (statistics.fmean(values), *values))
    return f"{mean} ({', '.join(each)})"


def table(known: Sequence[records.Record], task: str, beta2: float) -> str:
    """Returns a row for each format and a column for each learning rate, over the seeds that fp32 has too."""
    losses: dict[tuple[str, float], dict[int, float]] = {}
    for record in known:
        name, state, second, lr, seed = key_of(record)
        if (name, second) == (task, beta2):
            loss = math.nan if record["loss"] is None else float(record["loss"])
            losses.setdefault((state, lr), {})[seed] = loss
    lrs = sorted({lr for _, lr in losses})
    rows = []
    for state in sorted({state for state, _ in losses}, key=rank):
        row = [LABELS.get(state, state)]
        for lr in lrs:
            mine, reference = losses.get((state, lr), {}), losses.get((REFERENCE, lr), {})
            if state == REFERENCE:
                row.append(cell([mine[seed] for seed in sorted(mine)], ".4f"))
            else:
                seeds = sorted(mine.keys() & reference.keys())
                row.append(cell([mine[seed] - reference[seed] for seed in seeds], "+.4f"))
        rows.append(row)
    return markdown(["states", *(f"lr {lr:g}" for lr in lrs)], rows)


def report(options: argparse.Namespace) -> int:
    known = records.load(options.results)
    if not known:
        print(f"{options.results} contains no finished run: train with `formats.py run`", file=sys.stderr)
        return 1
    print("Held-out loss of fp32 states in nats, and the differences to it: mean (each seed).")
    for task, beta2 in sorted({(record["task"], record["beta2"]) for record in known}):
        settings = next(record["settings"] for record in known if record["task"] == task)
        title = f"{task}, beta2 {beta2:g}, {settings['steps']} steps, {settings['device']}:"
        print(f"\n{title}\n\n{table(known, task, beta2)}")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = option_parser(__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    add = shared.add_argument
    add("--results", type=pathlib.Path, required=True, help="JSON lines, one for each finished run")
    commands.add_parser("report", parents=[shared], help="tables from the results file")
    runs = commands.add_parser("run", parents=[shared], help="train the missing runs, then report")
    add = runs.add_argument
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    add("--tasks", type=some_of(list(TASKS)), default=list(TASKS), help="zipf,char")
    add("--text", type=pathlib.Path, help="text file of char; its last tenth is held out")
    add("--formats", type=some_of(FORMATS), default=DEFAULT_FORMATS, help=f"some of {', '.join(FORMATS)}")
    add("--lrs", type=numbers, default=[5e-4, 1e-3, 2e-3], help="learning rates (5e-4,1e-3,2e-3)")
    add("--beta2", type=numbers, default=[0.999], help="values of beta2 (0.999)")
    add("--seeds", type=int, default=3, help="seeds 0 to n-1 (3)")
    add("--time-limit", type=float, metavar="SECONDS", help="do not start a run that would take longer")
    add("--device", type=torch.device, default=device)
    add("--precision", choices=("bf16", "fp32"), help="precision of char's model (bf16 on a GPU, else fp32)")
    for size in SIZES:
        defaults = ", ".join(f"{name} {value}" for name in TASKS if (value := getattr(TASKS[name], size)))
        add("--" + size.replace("_", "-"), type=int, help=f"({defaults})")
    options = parser.parse_args(arguments)
    if options.command == "run":
        given = [size for size in SIZES if getattr(options, size) is not None]
        require_positive(runs, options, "seeds", *given)
        if "char" in options.tasks and options.text is None:
            runs.error("--text is missing: the task char needs one; --tasks zipf trains without it")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.command == "run":
        run(options)
    return report(options)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except (ValueError, OSError) as error:
        raise SystemExit(f"formats.py: {error}") from error
