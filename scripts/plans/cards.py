"""Which settings for which card: the largest batch of each way to train that fits, and one line of advice."""

from __future__ import annotations

import itertools

from .planner import Planner
from .tables import AGAIN, STATES, Key, Table, clips, rate

# Key of the list of GPUs by the name on the page. A size is a card of that size with an RTX 3060's speed.
CARDS = {
    "8 GB (RTX 3060's speed)": "8GB",
    "12 GB (RTX 3080)": "rtx3080-12gb",
    "16 GB (RTX 4080)": "rtx4080",
    "24 GB (RTX 4090)": "rtx4090",
    "48 GB (L40S)": "l40s",
    "80 GB (H100)": "h100",
}
# The plainest first: advice takes a later one where it is clearly faster.
SETTINGS = {
    "fp32 states": STATES["fp32"],
    "8-bit states": STATES["8-bit"],
    "4-bit, checkpointing": f"{STATES['4-bit']} {AGAIN['on']}",
    "4-bit, checkpointing, `offload=stream`": f"{STATES['4-bit']} {AGAIN['on']} offload=stream",
}
MODELS = {"BDH 101M": ("bdh", "rows", "tokens/s"), "Parakeet 0.6B": ("parakeet", "clips", "clips/s")}
CLEARLY = 1.05


def fitting(planner: Planner, card: str, model: str) -> dict[str, tuple[int, float]]:
    """Largest batch and its speed, by setting; 0 and 0 where not even one row fits.

    The speed is that of the multiple of 4 below it: other sizes give products with odd sides, which the
    plan says are slower.
    """
    config = MODELS[model][0]
    found = {}
    for name, words in SETTINGS.items():
        batch = planner.largest(config, CARDS[card], words)
        even = batch - batch % 4 if batch >= 4 else batch
        speed = planner.plan(config, CARDS[card], words, clips(even)).rate if batch else 0.0
        found[name] = (batch, speed)
    return found


def _cells(planner: Planner, key: Key) -> list[str]:
    unit = MODELS[key[1]][2]
    found = fitting(planner, *key).values()
    return [f"{batch:,} ({rate(speed)} {unit})" if batch else "none fits" for batch, speed in found]


TABLE = Table(
    ["card", "model", *(f"{letter}: {name}" for letter, name in zip("abcd", SETTINGS, strict=True))],
    list(itertools.product(CARDS, MODELS)),
    _cells,
)


def choice(planner: Planner, card: str, model: str) -> str:
    found = fitting(planner, card, model)
    best = ""
    for name, (batch, speed) in found.items():
        if batch and (not best or speed > CLEARLY * found[best][1]):
            best = name
    if not best:
        return f"{model} does not fit"
    unit = MODELS[model][1]
    most = max(found, key=lambda name: found[name][0])
    more = f" (the most is {found[most][0]:,}: {most})" if most != best else ""
    return f"{model} with {best}, up to {found[best][0]:,} {unit}{more}"


def advice(planner: Planner, card: str) -> str:
    return f"- **{card}**: {'; '.join(choice(planner, card, model) for model in MODELS)}."
