"""docs/guides/which_card.md, whole: the sections in their order, with the words around the tables."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Sequence

from . import cards, guides, tables
from .planner import CONFIGS, ROOT, Planner

PAGE = ROOT / "docs" / "guides" / "which_card.md"
TESTS = "tests/apps/test_plan_tables.py"
INTRO = f"""\
<!-- scripts/plan_tables wrote this page: change scripts/plans/, not the page, then run
     scripts/plan_tables --command build/bin/octavo -->
# Which card, which settings?

<!-- not a claim: sizes of cards -->
How much memory and time the two models of the examples take, as [`octavo plan`](plan.md) predicts it, for
cards from 8 to 80 GB and for up to 1,024 GPUs. One command plans all of it again: `scripts/plan_tables`.
"Measured" is what [benchmarks.md](../benchmarks.md) has of one H200; every other figure is a prediction.

- GB are 10^9 bytes. "Peak" is what torch allocates at most. "In all" is what the card must have: with
  torch's fragments and the CUDA context.
- Owners are those at the peak. Without checkpointing the peak is where the backward pass begins: there are
  hardly any gradients yet.
<!-- not a claim: what is planned -->
- Weights are bf16 with 8 more bits of master ("model"), but for fp32. Parakeet's clips have 20 s and 70
  tokens, BDH's rows 512 bytes.
- "fp32", "8-bit" and "4-bit" states are `optimizer=adamw`, `adamw_8bit` and `adamw_4bit`; checkpointing is
  `gradient_checkpointing=true`, FP8 is `use_fp8=true`.

The two configs. `octavo data make-text tales.txt --bytes 2M` writes the text. BDH 25M is the same with
`n_embd: 256`.

```yaml
{CONFIGS["bdh"]}```

```yaml
{CONFIGS["parakeet"]}```
"""


@dataclasses.dataclass(frozen=True)
class Section:
    title: str
    test: str
    tables: Sequence[tables.Table]
    before: str = ""
    after: str = ""


SECTIONS = (
    Section(
        "Four questions about Parakeet 0.6B",
        "test_four_questions",
        [guides.DECISION],
        """
A common guide asks them. The answers are planned with its own batches: 6 micro-batches of 20
clips, and on two GPUs 2 micro-batches of 32 clips on each.
""",
        """
- **One A100** even has room for fp32 states without checkpointing
  ([the table](#parakeet-06b-all-52m-clips-on-a100s)). Checkpointing makes a step longer, and is for batches
  that would not fit otherwise.
- **Two GPUs** halve the hours. They do not halve the memory of each; `parallel: zero2` divides states and
  gradients ([ranks.md](ranks.md)).
- **Offload** is for cards that are smaller than this one.
- **Stages** change which clips come first, and not the memory. One run trains all of them
  ([train.md](train.md)).
""",
    ),
    Section(
        "What guides say",
        "test_claims_of_guides",
        [guides.TABLE],
        """
Some guides for these models have tables of guesses. Next to them is the plan of the config that each claim
is about, with its evaluation batch and its accumulation. Accumulation keeps sums of gradients in fp32, which
are 4 bytes a parameter.
""",
        """
BDH's guesses leave out the activations, which are nearly all of its memory. Its plans here are with
checkpointing: without it fp32 does not fit an A100. The guide for BDH calls its optimizer 4-bit, but it is
AdamW with states of 8 bits. `adamw_4bit` has real 4 bits.
""",
    ),
    Section(
        "Which card",
        "test_cards",
        [cards.TABLE],
        """
The largest micro-batch that fits, and the speed of the multiple of 4 below it. For more rows a
step, `gradient_accumulation_steps` adds up gradients in fp32: 4 more bytes a parameter.
""",
    ),
    Section(
        "Parakeet 0.6B on one GPU",
        "test_parakeet",
        [tables.PARAKEET, tables.SAVINGS],
        """
Planned for an H200, beside the measured runs. The second table has differences of "in all".
""",
        """
States are a fixed part: 8 bytes a parameter in fp32, 2 in 8 bits, 1 in 4 bits. What grows with the batch
are activations, and checkpointing takes most of them away. With 8 clips a fast host takes as long as the
GPU, and it is the planned one. A slow host takes twice its time, and a step up to 1.8 times as long.
""",
    ),
    Section(
        "Parakeet 0.6B on several GPUs",
        "test_ranks",
        [tables.ranks(count) for count in tables.CLIPS],
        """
GB that each A100 must have. `ddp` divides nothing: each GPU has all, with gradients in buckets. NCCL's own
buffers are not counted.
""",
        """
With `zero2` a GPU keeps its part of the gradients only ([ranks.md](ranks.md#what-each-rank-has)).
""",
    ),
    Section(
        "Parakeet 0.6B: all 5.2M clips on A100s",
        "test_strategies",
        [guides.STRATEGIES, tables.COMPONENTS],
        """
The strategies of a common guide with its own batches and accumulation, next to its figures. Hours are for one
epoch of clips of 20 s, if reading keeps up. The guide has one row for states in host memory; two ways of it
are planned. "Speed" is relative to the first row. DeepSpeed itself was never run on
Parakeet; [benchmarks.md](../benchmarks.md#deepspeed) has its rows for a ViT and a Llama-shaped model.
""",
    ),
    Section(
        "Parakeet 0.6B: states in host memory",
        "test_offload",
        [tables.OFFLOAD],
        "32 clips and 8-bit states on an H200:",
        """
Host memory of `offload: host` has copies of weights and gradients, too.
torchao's guide has tables of ViTs. `octavo plan` has no such model; they were measured:
[offload of ViT-g](../benchmarks.md#offload-vit-g-11b-2026-11-16),
[ViT-H by optimizer](../benchmarks.md#vit-h-with-bf16-amp). [octavo.plan](plan.md#from-python) plans them from
Python.
""",
    ),
    Section(
        "BDH by precision",
        "test_bdh",
        [tables.PRECISION_OF_BDH, guides.PERCENTAGES, tables.UNITS],
        """
32 rows of 512 bytes, planned for an H200; the last columns are speeds on other cards. The second table has
memory in percent of fp32, as a common guide writes it: with checkpointing, planned for an H100 and measured
on an H200. "Saved without activations" omits what grows with the batch. The guide's "4-bit" optimizer is
AdamW with states of 8 bits.
""",
        """
Plans count the FP8 codes of weights as activations; "model, measured" has them. Where activations are kept,
those that are kept as FP8 codes take less. On cards without FP8 units (before Ada) a run with `use_fp8=true`
ends with a message, unless `fp8.fallback` is `bf16`.
""",
    ),
    Section(
        "From 1 to 1,024 GPUs",
        "test_scale",
        [tables.SCALE],
        """
`ddp`, 8-bit states, 32 rows or clips on each GPU, no checkpointing. None of this was measured. It assumes
that data arrives in time and that no GPU is slower than the others.
""",
    ),
)
IN_SHORT = """\
In short, the plainest of these four settings that no other beats by more than a twentieth:"""


def sections(planner: Planner) -> Iterator[str]:
    for section in SECTIONS:
        blocks = [f"## {section.title}", f"<!-- claims of this section: test {TESTS}::{section.test} -->"]
        blocks += [section.before.strip()] if section.before else []
        blocks += [table.text(planner).rstrip() for table in section.tables]
        if section.test == "test_cards":
            blocks.append(IN_SHORT)
            blocks.append("\n".join(cards.advice(planner, card) for card in cards.CARDS))
        blocks += [section.after.strip()] if section.after else []
        yield "\n\n".join(blocks) + "\n"


def write(planner: Planner, path: pathlib.Path = PAGE) -> None:
    path.write_text("\n".join([INTRO, *sections(planner)]))
