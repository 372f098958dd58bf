"""Tests docs/guides/which_card.md, which scripts/plan_tables writes: every row exists, and sampled rows of
each table equal the current output of the command. Each prediction starts the trainer, so only some rows
are recomputed.
"""

from __future__ import annotations

import os
import pathlib
import sys
from collections.abc import Sequence

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMAND = os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build" / "bin" / "octavo")
TRAINER = pathlib.Path(COMMAND).with_name("octavo-trainer")
sys.path.insert(0, str(ROOT / "scripts"))

from plans import cards, guides, page, tables  # noqa: E402
from plans.planner import Planner, measured, rows_of  # noqa: E402

PAGE = page.PAGE.read_text()
AGAIN = "scripts/plan_tables writes the page again"
needs_plans = pytest.mark.skipif(not TRAINER.exists(), reason="this build has no octavo-trainer (LibTorch)")
ALL = [table for section in page.SECTIONS for table in section.tables]
SMALLEST = next(iter(cards.CARDS))


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Planner:
    return Planner(COMMAND, tmp_path_factory.mktemp("plans"))


def plain(cells: Sequence[str]) -> list[str]:
    return [cell.replace("`", "").replace("*", "") for cell in cells]


def written(table: tables.Table) -> list[list[str]]:
    """Returns the rows of the page's table with this table's header."""
    return rows_of(PAGE, "| " + " | ".join(table.head) + " |")


def check(table: tables.Table, planner: Planner, *keys: tables.Key) -> None:
    rows = written(table)
    for key in keys:
        assert plain(table.row(planner, key)) in rows, f"{key}: {AGAIN}"


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.head[0])
def test_every_row_is_there(table: tables.Table) -> None:
    keys = [row[: len(key)] for row, key in zip(written(table), table.keys, strict=True)]
    assert keys == [plain(key) for key in table.keys], AGAIN
    assert all(len(row) == len(table.head) for row in written(table))


def test_words_are_those_of_the_script() -> None:
    assert PAGE.startswith(page.INTRO), AGAIN
    for section in page.SECTIONS:
        assert f"\n## {section.title}\n" in PAGE, AGAIN
        assert section.before.strip() in PAGE, AGAIN
        assert section.after.strip() in PAGE, AGAIN


def test_deepspeed_is_named_as_not_run_on_parakeet() -> None:
    """The guide's row describes DeepSpeed; the rows next to it are plans of our `offload`."""
    section = PAGE.partition("\n## Parakeet 0.6B: all 5.2M clips on A100s\n")[2].partition("\n## ")[0]
    assert "DeepSpeed itself was never run on Parakeet; [" in " ".join(section.split())
    assert "](../benchmarks.md#deepspeed)" in section
    assert "\n### DeepSpeed\n" in (ROOT / "docs/benchmarks.md").read_text()


def test_measured_figures_are_found() -> None:
    """A changed heading in benchmarks.md is an error; a changed row would leave cells empty."""
    assert all(measured(tables.SPEECH, ("adamw_8bit", "on", "32"), (3, 4)))
    assert all(measured(tables.OFFLOADED, ("offload: stream",), (1, 2, 4)))
    found = [sum(bool(row[-3]) for row in written(tables.PRECISION_OF_BDH))]
    found += [sum(bool(row[-1]) for row in written(tables.PARAKEET))]
    assert found == [7, 7]


def test_configs_are_those_of_the_guides() -> None:
    """The planned clips per micro-batch, clips per evaluation and accumulation equal those of the guides'
    YAML."""
    pages = {"SMALL": (8, 4, 16), "EIGHT_BIT": (16, 8, 8), "CHECKPOINTED": (24, 12, 5)}
    pages |= {"FULL": (20, 10, 6), "TWO": (32, 16, 2)}
    for name, (train, evaluation, accumulation) in pages.items():
        words = getattr(guides, name)
        assert f"per_device_train_batch_size={train} " in words
        assert f"per_device_eval_batch_size={evaluation} " in words
        assert f"gradient_accumulation_steps={accumulation} " in words
        assert guides.CLIPS_OF[words] == f"{train} / {evaluation} / {accumulation}"
    # No row of Parakeet is planned without its accumulation setting.
    for table in (guides.TABLE, guides.STRATEGIES):
        rows = [key for key in table.keys if not key[0].startswith("BDH")]
        assert {key[1] for key in rows} <= set(guides.CLIPS_OF.values())


@needs_plans
def test_four_questions(planner: Planner) -> None:
    check(guides.DECISION, planner, guides.DECISION.keys[0], guides.DECISION.keys[-1])


@needs_plans
def test_claims_of_guides(planner: Planner) -> None:
    full = next(key for key in guides.CLAIMS if key[0] == "Parakeet: 8-bit states, all samples")
    check(guides.TABLE, planner, full)
    # The guide's "4-bit" optimizer is AdamW with 8-bit states.
    check(guides.TABLE, planner, ("BDH 100M, bf16, 8-bit AdamW, A100", "32 rows", "3.2 GB, 1,350 tokens/s"))


@needs_plans
def test_cards(planner: Planner) -> None:
    check(cards.TABLE, planner, (SMALLEST, "BDH 101M"))
    rows = written(cards.TABLE)
    for card in cards.CARDS:  # a card's line names batches from its rows
        line = next(line for line in PAGE.splitlines() if line.startswith(f"- **{card}**: "))
        for model in cards.MODELS:
            row = next(row for row in rows if row[:2] == [card, model])
            said = line.partition(f"{model} with ")[2].partition(", up to ")[2].split(" ")[0]
            assert any(cell.startswith(f"{said} (") for cell in row[2:]), (card, model, AGAIN)


@needs_plans
def test_parakeet(planner: Planner) -> None:
    check(tables.PARAKEET, planner, ("8-bit", "on", "32"))
    check(tables.SAVINGS, planner, ("on", "32"))


@needs_plans
def test_ranks(planner: Planner) -> None:
    check(tables.ranks(20), planner, ("4", "zero1"))


@needs_plans
def test_strategies(planner: Planner) -> None:
    check(guides.STRATEGIES, planner, guides.STRATEGIES.keys[2])
    check(tables.COMPONENTS, planner, ("optimizer states",))


@needs_plans
def test_offload(planner: Planner) -> None:
    check(tables.OFFLOAD, planner, ("offload: stream",))


@needs_plans
def test_bdh(planner: Planner) -> None:
    check(tables.PRECISION_OF_BDH, planner, ("101M", "on", "FP8"))
    check(guides.PERCENTAGES, planner, guides.PERCENTAGES.keys[5])
    check(tables.UNITS, planner, ("A100",))


@needs_plans
def test_scale(planner: Planner) -> None:
    check(tables.SCALE, planner, ("Parakeet 0.6B", "1,024"))
