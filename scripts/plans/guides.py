"""What guides for these two models say, beside the plan: claims of memory and speed that many follow."""

from __future__ import annotations

from collections.abc import Callable

from .planner import Plan, Planner
from .tables import AGAIN, BDH, PRECISION, STATES, Key, Table, clips, gb, rate


def _parakeet(planner: Planner, count: int, *words: str, gpus: int = 1) -> Plan:
    return planner.plan("parakeet", "a100", *words, clips(count), gpus=gpus)


def _less(planner: Planner, count: int, before: str, after: str) -> float:
    return _parakeet(planner, count, before).total - _parakeet(planner, count, after).total


def _samples(planner: Planner) -> str:
    few, many = (
        _parakeet(planner, 8, STATES["8-bit"], f"data.generator.clips={count}") for count in (100000, 500000)
    )
    return f"{gb(many.total - few.total)} GB: clips that wait on the disk take none"


def _activations(planner: Planner) -> str:
    plain, again = (_parakeet(planner, 24, STATES["8-bit"], AGAIN[on]) for on in ("off", "on"))
    share = 100 * (1 - again.owners["activations"] / plain.owners["activations"])
    return f"{gb(plain.total - again.total)} GB at 24 clips, {share:.0f}% of the activations"


def _slower(planner: Planner, count: int, before: str, after: str) -> str:
    return (
        f"{100 * (_parakeet(planner, count, before).rate / _parakeet(planner, count, after).rate - 1):+.1f}%"
    )


def _offload(planner: Planner) -> str:
    words = f"{STATES['fp32']} {AGAIN['on']}"
    return f"{_slower(planner, 20, words, words + ' offload=stream')} with `offload=stream`, 20 clips"


def _two(planner: Planner) -> str:
    one, two = (_parakeet(planner, 32, STATES["8-bit"], gpus=gpus) for gpus in (1, 2))
    return f"{gb(one.total)} GB on one, {gb(two.total)} GB on each of two"


def _bdh(planner: Planner, gpu: str, precision: str) -> str:
    plan = planner.plan("bdh", gpu, BDH["101M"], AGAIN["on"], PRECISION[precision], clips(32))
    return f"{gb(plan.total)} GB, {rate(plan.rate)} tokens/s"


CLAIMS: dict[Key, Callable[[Planner], str]] = {
    ("Parakeet: 8-bit states save", "20 to 25 GB"): lambda planner: (
        f"{gb(_less(planner, 20, STATES['fp32'], STATES['8-bit']))} GB at 20 clips, as at any other batch"
    ),
    ("Parakeet: fp32 states, 8 clips", "45 to 50 GB"): lambda planner: (
        f"{gb(_parakeet(planner, 8, STATES['fp32']).total)} GB"
    ),
    ("Parakeet: 8-bit states, 8 clips", "35 to 40 GB"): lambda planner: (
        f"{gb(_parakeet(planner, 8, STATES['8-bit']).total)} GB"
    ),
    ("Parakeet: 8-bit states, checkpointing, 20 clips", "50 to 55 GB"): lambda planner: (
        f"{gb(_parakeet(planner, 20, STATES['8-bit'], AGAIN['on']).total)} GB"
    ),
    ("Parakeet: 500k samples need more than 100k", "10 GB"): _samples,
    ("Parakeet: checkpointing saves", "15 to 20 GB, 30 to 50% of the activations"): _activations,
    ("Parakeet: checkpointing makes a step longer", "20 to 30%"): lambda planner: _slower(
        planner, 20, STATES["8-bit"], f"{STATES['8-bit']} {AGAIN['on']}"
    ),
    ("Parakeet: 8-bit states make a step longer", "5%"): lambda planner: _slower(
        planner, 20, STATES["fp32"], STATES["8-bit"]
    ),
    ("Parakeet: states in host memory make a step longer", "100 to 200%"): _offload,
    ("Parakeet: two GPUs with `ddp` halve the memory of each", "80 GB to 40 GB"): _two,
    ("BDH 100M, 32 rows, fp32, A100", "8.2 GB, 1,000 tokens/s"): lambda p: _bdh(p, "a100", "fp32"),
    ("BDH 100M, 32 rows, bf16, A100", "4.8 GB, 1,400 tokens/s"): lambda p: _bdh(p, "a100", "bf16"),
    ("BDH 100M, 32 rows, bf16, 4-bit states, A100", "3.2 GB, 1,350 tokens/s"): lambda p: _bdh(
        p, "a100", "bf16, 4-bit states"
    ),
    ("BDH 100M, 32 rows, FP8, H100", "3.6 GB, 2,100 tokens/s"): lambda p: _bdh(p, "h100", "FP8"),
    ("BDH 100M, 32 rows, FP8, 4-bit states, H100", "2.4 GB, 2,000 tokens/s"): lambda p: _bdh(
        p, "h100", "FP8, 4-bit states"
    ),
}
TABLE = Table(
    ["claim", "guides say", "the plan, A100 where none is named"],
    list(CLAIMS),
    lambda planner, key: [CLAIMS[key](planner)],
)
