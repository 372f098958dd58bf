"""The tables of docs/guides/which_card.md: for each its first line, its rows and how a row is planned.

A row is planned by itself, so that a test can repeat some of them. Where a run was measured on an H200, its
figures stand beside those planned for one.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

from .planner import Plan, Planner, measured

STATES = {"fp32": "optimizer=adamw", "8-bit": "optimizer=adamw_8bit", "4-bit": "optimizer=adamw_4bit"}
AGAIN = {"off": "gradient_checkpointing=false", "on": "gradient_checkpointing=true"}
FP8 = "use_fp8=true"
FP32 = "compute_dtype=float32"
CLIPS = (8, 20, 32)
SPEECH = "| optimizer | checkpointing | clips | clips/s | peak |"
OFFLOADED = "| states | clips/s | peak GB | states, masters"
PRECISIONS = "| | model GB | optimizer GB | peak GB | tokens/s | relative |"
BDH_SPEED = "| `octavo train`, `adamw_8bit`, 24-bit master |"
Key = tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Table:
    head: Sequence[str]
    keys: Sequence[Key]  # the first cells of each row
    cells: Callable[[Planner, Key], list[str]]  # those that follow

    def row(self, planner: Planner, key: Key) -> list[str]:
        return [*key, *self.cells(planner, key)]

    def text(self, planner: Planner) -> str:
        lines = [self.head, ["---"] * len(self.head), *(self.row(planner, key) for key in self.keys)]
        return "".join(
            "|" + "".join(f" {cell} |" if cell else " |" for cell in line) + "\n" for line in lines
        )


def gb(size: float) -> str:
    return f"{size:.2f}"


def rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def part(plan: Plan, *owners: str) -> str:
    return gb(sum(plan.owners[owner] for owner in owners))


def clips(count: int) -> str:
    return f"per_device_train_batch_size={count}"


def _parakeet(planner: Planner, key: Key) -> list[str]:
    states, again, count = key
    plan = planner.plan("parakeet", "h200", STATES[states], AGAIN[again], clips(int(count)))
    name = STATES[states].removeprefix("optimizer=")
    measured_rate, measured_peak = measured(SPEECH, (name, again, count), (3, 4))
    sizes = [part(plan, owner) for owner in ("gradients", "optimizer states", "activations")]
    return [
        gb(plan.model),
        *sizes,
        gb(plan.peak),
        measured_peak,
        gb(plan.total),
        rate(plan.rate),
        measured_rate,
    ]


PARAKEET = Table(
    [
        *("states", "checkpointing", "clips", "model GB", "gradients", "states", "activations", "peak GB"),
        *("measured", "in all GB", "clips/s", "measured"),
    ],
    [(s, a, str(c)) for a, s, c in itertools.product(AGAIN, STATES, CLIPS)],
    _parakeet,
)


def saved(planner: Planner, before: str, after: str, count: int) -> float:
    """GB of memory that the settings `after` need less than those `before`."""
    plans = [planner.plan("parakeet", "h200", words, clips(count)) for words in (before, after)]
    return plans[0].total - plans[1].total


def _savings(planner: Planner, key: Key) -> list[str]:
    again, count = AGAIN[key[0]], int(key[1])
    fp32 = f"{STATES['fp32']} {again}"
    cells = [gb(saved(planner, fp32, f"{STATES[each]} {again}", count)) for each in ("8-bit", "4-bit")]
    if key[0] == "on":
        return [*cells, ""]
    with_it = f"{STATES['8-bit']} {AGAIN['on']}"
    return [*cells, gb(saved(planner, f"{STATES['8-bit']} {again}", with_it, count))]


SAVINGS = Table(
    ["checkpointing", "clips", "8-bit states save GB", "4-bit states save GB", "checkpointing saves GB"],
    [(a, str(c)) for a, c in itertools.product(AGAIN, CLIPS)],
    _savings,
)


def ranks(count: int) -> Table:
    """GB of each GPU at so many clips of each."""

    def cells(planner: Planner, key: Key) -> list[str]:
        gpus, way = int(key[0]), key[1]
        shared = f"training.parallel={way}" if way else ""
        found = []
        for again, states in itertools.product(AGAIN, STATES):
            words = (STATES[states], AGAIN[again], clips(count), shared)
            found.append(gb(planner.plan("parakeet", "a100", *words, gpus=gpus).total))
        return found

    again = [f"{states}{', checkpointing' * (on == 'on')}" for on in AGAIN for states in STATES]
    several = list(itertools.product(("2", "4", "8"), ("ddp", "zero1", "zero2")))
    return Table([f"GPUs, {count} clips each", "parallel", *again], [("1", ""), *several], cells)


COMPONENTS_OF = {
    "weights and master bits": ("weights", "master bits"),
    "gradients": ("gradients",),
    "optimizer states": ("optimizer states",),
    "activations": ("activations",),
    "the rest": ("workspace", "communication", "rounding", "fragmentation", "CUDA context"),
}
KINDS = (f"{STATES['fp32']} {FP32}", STATES["fp32"], STATES["8-bit"])


def _components(planner: Planner, key: Key) -> list[str]:
    plans = [planner.plan("parakeet", "a100", kind, AGAIN["on"], clips(16)) for kind in KINDS]
    owners = COMPONENTS_OF.get(key[0])
    return [part(plan, *owners) if owners else gb(plan.total) for plan in plans]


COMPONENTS = Table(
    ["GB, 16 clips, checkpointing", "fp32", "bf16, fp32 states", "bf16, 8-bit states"],
    [*((name,) for name in COMPONENTS_OF), ("in all",)],
    _components,
)
RESIDENCES = {
    "offload: none": "",
    "offload: stream": "offload=stream",
    "offload: host, offload_gradients": "offload=host offload_gradients=true",
}


def _offload(planner: Planner, key: Key) -> list[str]:
    plan = planner.plan("parakeet", "h200", STATES["8-bit"], RESIDENCES[key[0]], clips(32))
    measured_rate, peak, host = measured(OFFLOADED, key, (1, 2, 4))
    return [gb(plan.peak), peak, gb(plan.host), host, rate(plan.rate), measured_rate]


OFFLOAD = Table(
    ["32 clips, 8-bit states, H200", "peak GB", "measured", "host GB", "measured", "clips/s", "measured"],
    [(name,) for name in RESIDENCES],
    _offload,
)
BDH = {"25M": "model.n_embd=256", "101M": "model.n_embd=512"}
PRECISION = {
    "fp32": f"{STATES['fp32']} {FP32}",
    "bf16": STATES["fp32"],
    "bf16, 8-bit states": STATES["8-bit"],
    "bf16, 4-bit states": STATES["4-bit"],
    "FP8": f"{STATES['fp32']} {FP8}",
    "FP8, 8-bit states": f"{STATES['8-bit']} {FP8}",
    "FP8, 4-bit states": f"{STATES['4-bit']} {FP8}",
}


def measured_bdh(size: str, again: str, precision: str) -> list[str]:
    """Peak GB, tokens/s and GB of the model of the runs of benchmarks.md, all of 32 rows."""
    nothing = ["", "", ""]
    if size != "101M":
        return nothing
    if again == "off":
        name = "gradient_checkpointing: false"
        known = precision == "bf16, 8-bit states"
        return [*measured(BDH_SPEED, (name,), (3, 2)), ""] if known else nothing
    name = "fp32 (at f6e0c9c)" if precision == "fp32" else precision
    return measured(PRECISIONS, (name,), (3, 4, 1))


def _bdh(planner: Planner, key: Key) -> list[str]:
    size, again, precision = key
    words = (BDH[size], AGAIN[again], PRECISION[precision], clips(32))
    plan = planner.plan("bdh", "h200", *words)
    peak, speed, _ = measured_bdh(size, again, precision)
    others = []
    for gpu in ("h100", "a100"):
        if gpu == "a100" and FP8 in PRECISION[precision]:
            others.append("no FP8")
            continue
        other = planner.plan("bdh", gpu, *words)
        others.append(rate(other.rate) if other.fits else "does not fit")
    sizes = [gb(plan.model), part(plan, "optimizer states"), part(plan, "activations")]
    return [*sizes, gb(plan.peak), peak, gb(plan.total), rate(plan.rate), speed, *others]


PRECISION_OF_BDH = Table(
    [
        *("BDH", "checkpointing", "precision", "model GB", "optimizer", "activations", "peak GB", "measured"),
        *("in all GB", "tokens/s: H200", "measured", "H100", "A100"),
    ],
    list(itertools.product(BDH, reversed(AGAIN), PRECISION)),
    _bdh,
)
GPUS = {
    "B200": "b200",
    "H100": "h100",
    "L40S": "l40s",
    "RTX 4090": "rtx4090",
    "A100": "a100",
    "RTX 3090": "rtx3090",
}


def _units(planner: Planner, key: Key) -> list[str]:
    words = (AGAIN["on"], STATES["8-bit"], clips(16))
    bf16, fp8 = (planner.plan("bdh", GPUS[key[0]], *words, more) for more in ("", f"{FP8} fp8.fallback=bf16"))
    if bf16.step_ms == fp8.step_ms:
        return [rate(bf16.rate), "no FP8 units", ""]
    return [rate(bf16.rate), rate(fp8.rate), f"{fp8.rate / bf16.rate:.2f}"]


UNITS = Table(
    ["BDH 101M, 16 rows, 8-bit, checkpointing", "bf16, tokens/s", "FP8, tokens/s", "FP8 / bf16"],
    [(name,) for name in GPUS],
    _units,
)


def _scale(planner: Planner, key: Key) -> list[str]:
    gpus = int(key[1].replace(",", ""))
    config = key[0].split()[0].lower()
    words = (STATES["8-bit"], clips(32))
    one, plan = (planner.plan(config, "h100", *words, gpus=count) for count in (1, gpus))
    unit = "clips/s" if config == "parakeet" else "tokens/s"
    efficiency = 100 * plan.rate / (gpus * one.rate)
    return [
        f"{plan.step_ms:.1f}",
        f"{plan.exposed_ms:.2f}",
        f"{rate(plan.rate)} {unit}",
        f"{efficiency:.1f}%",
    ]


SCALE = Table(
    ["model", "H100s", "ms a step", "communication not hidden, ms", "throughput", "efficiency"],
    list(itertools.product(("BDH 101M", "Parakeet 0.6B"), ("1", "8", "64", "1,024"))),
    _scale,
)
