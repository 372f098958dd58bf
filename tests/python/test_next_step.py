"""A checkpoint of torch, torchao or bitsandbytes, loaded here: the next step is the one they would have made.

The limits are the figures of docs/compatibility.md, row by row.
"""

from __future__ import annotations

import importlib
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from octavo import optim
from peers import need

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/compatibility.md"
LR = 1e-3
SIX = ("Adam8bit", "Adam4bit", "AdamFp8", "AdamW8bit", "AdamW4bit", "AdamWFp8")
BITSANDBYTES_ADAM = ("AdamW8bit", "Adam8bit", "PagedAdamW8bit", "AdamW")
Case = tuple[str, str, str, dict[str, Any]]  # their module, their class, ours, their options

# By the first cell of the table: the cases behind each of the figures of the last.
ROWS: dict[str, tuple[list[Case], ...]] = {
    "torchao's six classes": ([("torchao.optim", name, name, {}) for name in SIX],),
    "torchao `AdamW8bit(block_size=2048)`": (
        [("torchao.optim", "AdamW8bit", "AdamW8bit", {"block_size": 2048})],
    ),
    "torchao `_AdamW`": ([("torchao.optim", "_AdamW", "AdamW", {})],),
    "bitsandbytes `AdamW8bit`, `Adam8bit`, `PagedAdamW8bit`, `AdamW`": (
        [("bitsandbytes.optim", name, name, {}) for name in BITSANDBYTES_ADAM],
    ),
    "bitsandbytes `Lion8bit`, `Lion`; `SGD8bit`": (
        [("bitsandbytes.optim", name, name, {}) for name in ("Lion8bit", "Lion")],
        [("bitsandbytes.optim", "SGD8bit", "SGD8bit", {"momentum": 0.9})],
    ),
    "torch.optim `AdamW`": (
        [("torch.optim", "AdamW", "AdamW", {})],
        [("torch.optim", "AdamW", "AdamW8bit", {})],
    ),
    "torch.optim `SGD` with momentum": ([("torch.optim", "SGD", "SGD", {"momentum": 0.9})],),
    "bitsandbytes `RMSprop`; `AdEMAMix8bit`, `AdEMAMix`": (
        [("bitsandbytes.optim", "RMSprop", "RMSprop", {})],
        [("bitsandbytes.optim", name, name, {}) for name in ("AdEMAMix8bit", "AdEMAMix")],
    ),
    "bitsandbytes `LARS`; `LAMB(max_unorm=0)`": (
        [("bitsandbytes.optim", "LARS", "LARS", {"momentum": 0.9})],
        [("bitsandbytes.optim", "LAMB", "LAMB", {"max_unorm": 0.0})],
    ),
    "bitsandbytes `RMSprop8bit`; `Adagrad8bit`": (
        [("bitsandbytes.optim", "RMSprop8bit", "RMSprop8bit", {})],
        [("bitsandbytes.optim", "Adagrad8bit", "Adagrad8bit", {})],
    ),
    "torch.optim `RMSprop`; centered, with momentum; `Adagrad`": (
        [("torch.optim", "RMSprop", "RMSprop", {})],
        [("torch.optim", "RMSprop", "RMSprop", {"momentum": 0.9, "centered": True})],
        [("torch.optim", "Adagrad", "Adagrad", {"initial_accumulator_value": 0.1, "lr_decay": 0.1})],
    ),
}


def figures() -> Iterator[tuple[str, int, float]]:
    """(row, which of its figures, figure) of the page's table."""
    lines = PAGE.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| saved by |"))
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return
        first, _, last = (cell.strip() for cell in line.strip("|").split(" | "))
        for number, text in enumerate(last.split(";")):
            yield first, number, float(text)


def difference(module: str, theirs: str, ours: str, options: dict[str, Any]) -> float:
    """The difference of the parameters after one step of each, from a state after five steps of theirs."""
    if not module.startswith("torch.optim"):
        need(module.split(".")[0])
    generator = torch.Generator().manual_seed(3)
    param = torch.nn.Parameter(0.1 * torch.randn(64, 128, generator=generator))
    optimizer = getattr(importlib.import_module(module), theirs)([param], lr=LR, **options)
    with torch.compiler.set_stance("force_eager"):
        for _ in range(5):
            param.grad = torch.randn(64, 128, generator=generator)
            optimizer.step()
        copy = torch.nn.Parameter(param.detach().clone())
        kept = {name: value for name, value in options.items() if name != "block_size"}
        mine = getattr(optim, ours)([copy], lr=LR, **kept)
        mine.load_state_dict(optimizer.state_dict())
        param.grad = torch.randn(64, 128, generator=generator)
        copy.grad = param.grad.clone()
        optimizer.step()
        mine.step()
    return float((param - copy).detach().abs().max())


@pytest.mark.filterwarnings("ignore")
def test_the_next_step_is_the_peers() -> None:
    seen = set()
    for row, number, figure in figures():
        found = max(difference(*case) for case in ROWS[row][number])
        assert found <= 2 * figure, f"{row}: {found:.1e}, the page says {figure}"
        assert found >= figure / 5, f"{row}: {found:.1e}, much less than the page says ({figure})"
        seen.add((row, number))
    assert seen == {(row, number) for row, parts in ROWS.items() for number in range(len(parts))}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("AdamW", {}),
        ("Adam", {"amsgrad": True}),
        ("SGD", {"momentum": 0.9}),
        ("RMSprop", {}),
        ("RMSprop", {"momentum": 0.9, "centered": True}),
        ("Adagrad", {"initial_accumulator_value": 0.1, "lr_decay": 0.1}),
    ],
    ids=str,
)
def test_back_to_torch(name: str, options: dict[str, Any]) -> None:
    """portable_state_dict() is what torch's class of the same name goes on from."""
    generator = torch.Generator().manual_seed(3)
    param = torch.nn.Parameter(0.1 * torch.randn(64, 128, generator=generator))
    mine = getattr(optim, name)([param], lr=LR, **options)
    for _ in range(3):
        param.grad = torch.randn(64, 128, generator=generator)
        mine.step()
    copy = torch.nn.Parameter(param.detach().clone())
    theirs = getattr(torch.optim, name)([copy], lr=0.5, foreach=False)
    theirs.load_state_dict(mine.portable_state_dict())
    entry, group = theirs.state[copy], theirs.param_groups[0]
    assert all(group[key] == value for key, value in {"lr": LR, **options}.items())
    plain = getattr(torch.optim, name)([torch.nn.Parameter(copy.detach().clone())], lr=LR, **options)
    plain.param_groups[0]["params"][0].grad = param.grad.clone()
    plain.step()
    expected = plain.state[plain.param_groups[0]["params"][0]]
    assert {key for key, value in entry.items() if value is not None} == expected.keys()
    param.grad = torch.randn(64, 128, generator=generator)
    copy.grad = param.grad.clone()
    mine.step()
    theirs.step()
    assert float((param - copy).detach().abs().max()) <= 1e-7
