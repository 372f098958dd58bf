"""Tests docs/which_card.md: every row exists, and sampled rows of each table equal what
scripts/plan_tables writes now. Each prediction starts the trainer, so only some rows are recomputed.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import pathlib
from importlib.machinery import SourceFileLoader

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build" / "bin" / "octavo")
TRAINER = pathlib.Path(COMMAND).with_name("octavo-trainer")
LOADER = SourceFileLoader("plan_tables", str(ROOT / "scripts" / "plan_tables"))
tables = importlib.util.module_from_spec(importlib.util.spec_from_loader(LOADER.name, LOADER))
LOADER.exec_module(tables)

PAGE = tables.PAGE.read_text()
AGAIN = "scripts/plan_tables writes the page again"
needs_plans = pytest.mark.skipif(not TRAINER.exists(), reason="this build has no octavo-trainer (LibTorch)")
STATES, CHECKPOINTING, COUNTS = ("fp32", "8-bit", "4-bit"), ("off", "on"), ("8", "20", "32")
PRECISIONS = [
    "fp32",
    *(k + more for k in ("bf16", "FP8") for more in ("", ", 8-bit states", ", 4-bit states")),
]
# The first cells of the rows of each table; a number: that many rows, which have texts of their own.
RANKS = [("1", ""), *itertools.product(("2", "4", "8"), ("ddp", "zero1", "zero2"))]
ROWS = {
    "question": 6,
    "claim": 19,
    "card": itertools.product(tables.CARDS, tables.MODELS),
    "states": ((s, again, count) for again, s, count in itertools.product(CHECKPOINTING, STATES, COUNTS)),
    "checkpointing": itertools.product(CHECKPOINTING, COUNTS),
    **{f"GPUs, {count} clips each": RANKS for count in COUNTS},
    "strategy": 6,
    "GB, 16 / 8 / 8, checkpointing": 6,
    "32 clips, 8-bit states, H200": 3,
    "BDH": itertools.product(("25M", "101M"), reversed(CHECKPOINTING), PRECISIONS),
    "BDH 101M": 7,
    "BDH 101M, 16 rows, 8-bit, checkpointing": 6,
    "model": itertools.product(tables.MODELS, ("1", "8", "64", "1,024")),
}
BATCHES = {"8 / 4 / 16", "16 / 8 / 8", "24 / 12 / 5", "20 / 10 / 6", "32 / 16 / 2"}  # of the guides' YAML


@pytest.fixture(scope="module")
def planner(tmp_path_factory):
    return tables.Planner(COMMAND, tmp_path_factory.mktemp("plans"))


def rows_of(head):
    """Returns the head's cells, and those of the rows, of the page's table with this first cell."""
    lines = iter(PAGE.splitlines())
    first = next(line for line in lines if line.startswith(f"| {head} |"))
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
    return tables.cells_of(first), [tables.cells_of(row) for row in rows][1:]


def check(planner, head, *begins):
    """Plans again the rows that begin with these texts."""
    first, cells = tables.TABLES[head]
    for begin in begins:
        row = next(row for row in rows_of(head)[1] if "|".join(row).startswith(begin))
        assert row == [*row[:first], *cells(planner, row[:first])], f"{begin}: {AGAIN}"


@pytest.mark.parametrize("head", ROWS)
def test_every_row_is_there(head):
    names, rows = rows_of(head)
    if isinstance(ROWS[head], int):
        assert len({tuple(row[: tables.TABLES[head][0]]) for row in rows}) == ROWS[head]
    else:
        assert [tuple(row[: tables.TABLES[head][0]]) for row in rows] == list(ROWS[head])
    assert {len(row) for row in rows} == {len(names)}, AGAIN


def test_every_table_is_planned():
    heads = [tables.cells_of(part.splitlines()[-1])[0] for part in PAGE.split("\n| ---")[:-1]]
    assert heads == list(tables.TABLES) == list(ROWS)


def test_a_row_without_a_known_optimizer_is_an_error(tmp_path):
    planner = tables.Planner("true", tmp_path)
    with pytest.raises(ValueError, match="'9-bits' names no optimizer states"):
        planner.plan("bdh", "h100", "9-bits", 1)


def test_deepspeed_is_named_as_not_run_on_parakeet():
    """The guide's row describes DeepSpeed; the rows next to it are plans of our `offload`."""
    section = PAGE.partition("\n## Parakeet 0.6B: all 5.2M clips on A100s\n")[2].partition("\n## ")[0]
    assert "DeepSpeed itself was never run on Parakeet; [" in " ".join(section.split())
    heading = "Offload: what does a step cost with the states in host memory?"
    anchor = heading.lower().replace(" ", "-").translate({ord(":"): None, ord("?"): None})
    assert f"](benchmarks.md#{anchor})" in section
    assert f"\n## {heading}\n" in (ROOT / "docs/benchmarks.md").read_text()


def test_measured_figures_are_found():
    """A changed heading in the record is an error; a changed row would leave cells empty."""
    speech = "| optimizer | checkpointing | clips | clips/s | peak |"
    assert all(tables.measured(speech, ("adamw_8bit", "on", "32"), (3, 4)))
    offloaded = "| states | clips/s | peak GB | states, masters"
    assert all(tables.measured(offloaded, ("offload: stream",), (1, 2, 4)))
    found = [
        sum(bool(row[-3]) for row in rows_of("BDH")[1]),
        sum(bool(row[-1]) for row in rows_of("states")[1]),
    ]
    assert found == [7, 7]


def test_configs_are_those_of_the_guides():
    """The planned clips per micro-batch, clips per evaluation and accumulation equal those of the guides'
    YAML. No row of Parakeet is planned without its accumulation setting.
    """
    rows = [row for head in ("claim", "strategy") for row in rows_of(head)[1] if not row[0].startswith("BDH")]
    assert {row[1] for row in rows} == BATCHES
    assert {tables.FULL, tables.TWO, tables.PARTS} < BATCHES
    words = [
        "per_device_train_batch_size=8",
        "per_device_eval_batch_size=4",
        "gradient_accumulation_steps=16",
    ]
    assert tables.batch_of("8 / 4 / 16")[:3] == words


class Asked(tables.Planner):
    """Notes the batches that tables ask for, and plans nothing."""

    def __init__(self):
        self.batches = set()

    def parakeet(self, settings, batch, *, gpu="a100", gpus=1):
        self.batches.add(batch)
        found = dict.fromkeys(("allocated", "total", "host"), 1.0)
        owners = ("weights", "master bits", "gradients", "optimizer states", "activations", "workspace")
        owners += ("communication", "rounding", "fragmentation", "CUDA context")
        memory = {**found, "fits": True, "owners": dict.fromkeys(owners, 1.0)}
        return tables.Plan({"memory": memory, "time": TIME})


TIME = {"step_seconds": 1.0, "exposed_seconds": 0.0, "clips_per_second": 1.0}


@pytest.mark.parametrize("head", ["question", "strategy", f"GB, {tables.PARTS}, checkpointing"])
def test_sections_of_the_guide_are_planned_with_its_accumulation(head):
    planner = Asked()
    first, cells = tables.TABLES[head]
    for row in rows_of(head)[1]:
        cells(planner, row[:first])
    assert planner.batches <= BATCHES


@needs_plans
def test_four_questions(planner):
    check(planner, "question", "One A100 of 80 GB?", "Validate gradually?")


@needs_plans
def test_claims_of_guides(planner):
    # The guide's "4-bit" optimizer is AdamW with 8-bit states.
    check(
        planner,
        "claim",
        "Parakeet: 8-bit states, all samples",
        "BDH 100M, bf16, 8-bit AdamW, A100|32 rows|3.2 GB",
    )


@needs_plans
def test_cards(planner):
    check(planner, "card", f"{next(iter(tables.CARDS))}|BDH 101M")
    for card in tables.CARDS:  # a card's line names batches from its rows
        line = next(line for line in PAGE.splitlines() if line.startswith(f"- **{card}**: "))
        for model in tables.MODELS:
            row = next(row for row in rows_of("card")[1] if row[:2] == [card, model])
            said = line.partition(f"{model} with ")[2].partition(", up to ")[2].split(" ")[0]
            assert any(cell.startswith(f"{said} (") for cell in row[2:]), (card, model, AGAIN)


@needs_plans
def test_parakeet(planner):
    check(planner, "states", "8-bit|on|32")
    check(planner, "checkpointing", "on|32")


@needs_plans
def test_ranks(planner):
    check(planner, "GPUs, 20 clips each", "4|zero1")


@needs_plans
def test_strategies(planner):
    check(planner, "strategy", "8-bit states, checkpointing|")
    check(planner, "GB, 16 / 8 / 8, checkpointing", "gradients", "in all")


@needs_plans
def test_offload(planner):
    check(planner, "32 clips, 8-bit states, H200", "offload: stream")


@needs_plans
def test_bdh(planner):
    check(planner, "BDH", "101M|on|FP8|")
    check(planner, "BDH 101M", "FP8, 8-bit AdamW")
    check(planner, "BDH 101M, 16 rows, 8-bit, checkpointing", "A100")


@needs_plans
def test_scale(planner):
    check(planner, "model", "Parakeet 0.6B|1,024")
