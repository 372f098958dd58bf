"""What guides for these two models say, beside the plan of the same settings: claims that many follow.

Batches, evaluation batches and accumulation are those of the guides' own configs. What the guide for BDH
calls a 4-bit optimizer is AdamW with states of 8 bits, and is planned as that.
"""

from __future__ import annotations

from collections.abc import Callable

from .planner import Plan, Planner
from .tables import AGAIN, BDH, PRECISION, STATES, Key, Table, clips, gb, measured_bdh, rate

# Settings of the guides for Parakeet, key by key. The ones without an optimizer or checkpointing have them
# named by the row. Evaluations need as many clips as the largest evaluation batch has.
EVALUATED = "data.generator.validation_clips=16"


def _batch(train: int, evaluation: int, accumulation: int) -> str:
    return (
        f"per_device_train_batch_size={train} per_device_eval_batch_size={evaluation} "
        f"gradient_accumulation_steps={accumulation} {EVALUATED}"
    )


SMALL, EIGHT_BIT, CHECKPOINTED = _batch(8, 4, 16), _batch(16, 8, 8), _batch(24, 12, 5)
FULL, TWO = _batch(20, 10, 6), _batch(32, 16, 2)
CLIPS_OF = {SMALL: "8 / 4 / 16", EIGHT_BIT: "16 / 8 / 8", CHECKPOINTED: "24 / 12 / 5"}
CLIPS_OF |= {FULL: "20 / 10 / 6", TWO: "32 / 16 / 2"}
EPOCH = 5.2e6  # clips of the full data set


def _parakeet(planner: Planner, *words: str, gpus: int = 1) -> Plan:
    return planner.plan("parakeet", "a100", *words, gpus=gpus)


def _less(planner: Planner, batch: str, before: str, after: str) -> float:
    return _parakeet(planner, batch, before).total - _parakeet(planner, batch, after).total


def _samples(planner: Planner) -> str:
    few, many = (
        _parakeet(planner, SMALL, STATES["8-bit"], f"data.generator.clips={count}")
        for count in (100000, 500000)
    )
    return f"{gb(many.total - few.total)} GB: clips that wait on the disk take none"


def _activations(planner: Planner) -> str:
    plain, again = (_parakeet(planner, CHECKPOINTED, STATES["8-bit"], AGAIN[on]) for on in ("off", "on"))
    share = 100 * (1 - again.owners["activations"] / plain.owners["activations"])
    return f"{gb(plain.total - again.total)} GB, {share:.0f}% of the activations"


def _slower(planner: Planner, batch: str, before: str, after: str) -> str:
    rates = [_parakeet(planner, batch, words).rate for words in (before, after)]
    return f"{100 * (rates[0] / rates[1] - 1):+.1f}%"


def _offload(planner: Planner) -> str:
    words = f"{STATES['fp32']} {AGAIN['on']}"
    ways = ("offload=stream", "offload=host offload_gradients=true")
    found = [_slower(planner, FULL, words, f"{words} {way}") for way in ways]
    return f"{found[0]} with `offload=stream`, {found[1]} with `offload=host` and `offload_gradients`"


def _two(planner: Planner) -> str:
    one, two = (_parakeet(planner, TWO, STATES["8-bit"], gpus=gpus) for gpus in (1, 2))
    return f"{gb(one.total)} GB on one, {gb(two.total)} GB on each of two"


def _bdh(planner: Planner, gpu: str, precision: str) -> str:
    plan = planner.plan("bdh", gpu, BDH["101M"], AGAIN["on"], PRECISION[precision], clips(32))
    return f"{gb(plan.total)} GB, {rate(plan.rate)} tokens/s"


def _needs(*words: str) -> Callable[[Planner], str]:
    return lambda planner: f"{gb(_parakeet(planner, *words).total)} GB"


# Claim, the guide's clips / evaluation clips / accumulation, and what the guide says.
CLAIMS: dict[Key, Callable[[Planner], str]] = {
    ("Parakeet: fp32 states, 100k samples", CLIPS_OF[SMALL], "45 to 50 GB"): _needs(SMALL, STATES["fp32"]),
    ("Parakeet: 8-bit states, 100k samples", CLIPS_OF[SMALL], "35 to 40 GB"): _needs(SMALL, STATES["8-bit"]),
    ("Parakeet: fp32 states, all samples", CLIPS_OF[FULL], "80 GB and more"): _needs(FULL, STATES["fp32"]),
    ("Parakeet: 8-bit states, all samples", CLIPS_OF[FULL], "50 to 55 GB"): _needs(FULL, STATES["8-bit"]),
    ("Parakeet: 8-bit states, checkpointing", CLIPS_OF[FULL], "50 to 55 GB"): _needs(
        FULL, STATES["8-bit"], AGAIN["on"]
    ),
    ("Parakeet: 8-bit states save", CLIPS_OF[EIGHT_BIT], "20 to 25 GB"): lambda planner: (
        f"{gb(_less(planner, EIGHT_BIT, STATES['fp32'], STATES['8-bit']))} GB"
    ),
    ("Parakeet: 500k samples need more than 100k", CLIPS_OF[SMALL], "10 GB"): _samples,
    (
        "Parakeet: checkpointing saves",
        CLIPS_OF[CHECKPOINTED],
        "15 to 20 GB, 30 to 50% of the activations",
    ): _activations,
    ("Parakeet: checkpointing makes a step longer", CLIPS_OF[CHECKPOINTED], "20 to 30%"): lambda planner: (
        _slower(planner, CHECKPOINTED, STATES["8-bit"], f"{STATES['8-bit']} {AGAIN['on']}")
    ),
    ("Parakeet: 8-bit states make a step longer", CLIPS_OF[FULL], "5%"): lambda planner: _slower(
        planner, FULL, STATES["fp32"], STATES["8-bit"]
    ),
    ("Parakeet: states in host memory make a step longer", CLIPS_OF[FULL], "100 to 200%"): _offload,
    ("Parakeet: two GPUs with `ddp` halve the memory of each", CLIPS_OF[TWO], "80 GB to 40 GB"): _two,
    ("BDH 100M, fp32, A100", "32 rows", "8.2 GB, 1,000 tokens/s"): lambda p: _bdh(p, "a100", "fp32"),
    ("BDH 100M, bf16, A100", "32 rows", "4.8 GB, 1,400 tokens/s"): lambda p: _bdh(p, "a100", "bf16"),
    ("BDH 100M, bf16, 8-bit AdamW, A100", "32 rows", "3.2 GB, 1,350 tokens/s"): lambda p: _bdh(
        p, "a100", "bf16, 8-bit states"
    ),
    ("BDH 100M, bf16, real 4-bit states, A100", "32 rows", ""): lambda p: _bdh(
        p, "a100", "bf16, 4-bit states"
    ),
    ("BDH 100M, FP8, H100", "32 rows", "3.6 GB, 2,100 tokens/s"): lambda p: _bdh(p, "h100", "FP8"),
    ("BDH 100M, FP8, 8-bit AdamW, H100", "32 rows", "2.4 GB, 2,000 tokens/s"): lambda p: _bdh(
        p, "h100", "FP8, 8-bit states"
    ),
    ("BDH 100M, FP8, real 4-bit states, H100", "32 rows", ""): lambda p: _bdh(p, "h100", "FP8, 4-bit states"),
}
TABLE = Table(
    [
        *("claim", "clips of a micro-batch / of an evaluation / accumulation", "guides say"),
        "the plan, A100 where none is named",
    ],
    list(CLAIMS),
    lambda planner, key: [CLAIMS[key](planner)],
)

# The strategies of the guide for the full data set: its GB, its speed against the first row, its hours.
STRATEGY: dict[Key, tuple[int, str]] = {
    ("fp32 states", CLIPS_OF[FULL], "80 GB and more", "1", "crashes"): (1, f"{STATES['fp32']} {FULL}"),
    ("8-bit states", CLIPS_OF[FULL], "55 GB", "0.95", "24"): (1, f"{STATES['8-bit']} {FULL}"),
    ("8-bit states, checkpointing", CLIPS_OF[FULL], "45 GB", "0.80", "30"): (
        1,
        f"{STATES['8-bit']} {AGAIN['on']} {FULL}",
    ),
    ("8-bit states, checkpointing, `offload=stream`", CLIPS_OF[FULL], "35 GB", "0.40", "60"): (
        1,
        f"{STATES['8-bit']} {AGAIN['on']} offload=stream {FULL}",
    ),
    (
        "8-bit states, checkpointing, `offload=host`, `offload_gradients`",
        CLIPS_OF[FULL],
        *("35 GB", "0.40", "60"),
    ): (1, f"{STATES['8-bit']} {AGAIN['on']} offload=host offload_gradients=true {FULL}"),
    ("8-bit states, 2 GPUs, `ddp`", CLIPS_OF[TWO], "40 GB", "1.80", "13"): (
        2,
        f"{STATES['8-bit']} training.parallel=ddp {TWO}",
    ),
}


def hours(plan: Plan) -> str:
    return f"{EPOCH / plan.rate / 3600:.1f}"


def _strategy(planner: Planner, key: Key) -> list[str]:
    first = _parakeet(planner, STATES["fp32"], FULL)
    gpus, words = STRATEGY[key]
    plan = _parakeet(planner, words, gpus=gpus)
    return [gb(plan.total), gb(plan.host), rate(plan.rate), f"{plan.rate / first.rate:.2f}", hours(plan)]


STRATEGIES = Table(
    [
        *("strategy", "clips / evaluation / accumulation", "guide: memory", "guide: speed", "guide: hours"),
        *("GB of each A100", "GB of the host", "clips/s", "speed", "hours for 5.2M clips"),
    ],
    list(STRATEGY),
    _strategy,
)

# The four questions of that guide, with its own settings for each answer.
STAGES = "data.generator.clips=5200000 data.stages=[100000,500000,1000000,-1]"
QUESTIONS: dict[Key, tuple[int, str]] = {
    ("One A100 of 80 GB?", "`adamw_8bit`; nothing else is needed"): (1, f"{STATES['8-bit']} {FULL}"),
    ("", "as the guide has it: also `gradient_checkpointing: true`"): (
        1,
        f"{STATES['8-bit']} {AGAIN['on']} {FULL}",
    ),
    ("Two GPUs or more?", "`num_gpus: 2`, `adamw_8bit`, 32 clips"): (2, f"{STATES['8-bit']} {TWO}"),
    ("Is speed not critical?", "`offload: stream`, `adamw_8bit`, checkpointing"): (
        1,
        f"{STATES['8-bit']} {AGAIN['on']} offload=stream {FULL}",
    ),
    ("", "the least memory: `offload: host`, `offload_gradients: true`"): (
        1,
        f"{STATES['8-bit']} {AGAIN['on']} offload=host offload_gradients=true {FULL}",
    ),
    ("Validate gradually?", "`data.stages: [100000, 500000, 1000000, -1]`, `adamw_8bit`"): (
        1,
        f"{STATES['8-bit']} {STAGES} {FULL}",
    ),
}


def _question(planner: Planner, key: Key) -> list[str]:
    gpus, words = QUESTIONS[key]
    plan = _parakeet(planner, words, gpus=gpus)
    return [gb(plan.total), rate(plan.rate), hours(plan)]


DECISION = Table(
    ["question", "settings", "GB of each A100", "clips/s", "hours for 5.2M clips"],
    list(QUESTIONS),
    _question,
)

# Model and optimizer in percent of fp32, and what is saved in all.
PERCENTS: dict[Key, str] = {
    ("FP32", "100%", "100%", "0%"): "fp32",
    ("BF16", "50%", "100%", "25%"): "bf16",
    ("BF16, 8-bit AdamW (there: 4-bit)", "50%", "25%", "50 to 60%"): "bf16, 8-bit states",
    ("BF16, real 4-bit states", "", "", ""): "bf16, 4-bit states",
    ("FP8", "40%", "100%", "30%"): "FP8",
    ("FP8, 8-bit AdamW (there: 4-bit)", "40%", "25%", "60 to 70%"): "FP8, 8-bit states",
    ("FP8, real 4-bit states", "", "", ""): "FP8, 4-bit states",
}


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}%"


def _percent(planner: Planner, key: Key) -> list[str]:
    plain, plan = (
        planner.plan("bdh", "h100", BDH["101M"], AGAIN["on"], PRECISION[each], clips(32))
        for each in ("fp32", PERCENTS[key])
    )
    states = [each.owners["optimizer states"] for each in (plain, plan)]
    fixed = [each.peak - each.owners["activations"] for each in (plain, plan)]
    planned = [
        _share(plan.model, plain.model),
        _share(states[1], states[0]),
        _share(plain.peak - plan.peak, plain.peak),
        _share(fixed[0] - fixed[1], fixed[0]),
    ]
    whole, found = (measured_bdh("101M", "on", each) for each in ("fp32", PERCENTS[key]))
    if not found[0]:
        return [*planned, "", ""]
    model, peak = ((float(found[i]), float(whole[i])) for i in (2, 0))
    return [*planned, _share(*model), _share(peak[1] - peak[0], peak[1])]


PERCENTAGES = Table(
    [
        *("BDH 101M", "guide: model", "guide: optimizer", "guide: saved"),
        *("model", "optimizer", "saved at the peak", "saved without activations"),
        *("model, measured", "saved at the peak, measured"),
    ],
    list(PERCENTS),
    _percent,
)
