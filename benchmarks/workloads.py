"""The tensors of `octavo bench shapes` as torch parameters, and gradients for the rows that a batch reaches.

The command decides which rows have a gradient (benchmarks/engine/rows.h). Only the first `alive` rows of a
shuffle may have one: at each step all of them, or those that `draws` draws by Zipf's law reach. A row without
a gradient contains exact zeros.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from report import run_octavo

WEIGHT, GRADIENT = 0.02, 0.002  # standard deviations


@dataclass(frozen=True)
class RowRule:
    row: int  # elements; the last row of a vector may have fewer
    rows: int
    alive: int
    draws: int


@dataclass(frozen=True)
class Tensor:
    shape: tuple[int, ...]
    rule: RowRule | None = None  # None: every row has a gradient at every step
    zero_weights: bool = False


def load_tensors(command: pathlib.Path, shape: str, numel: int, zeros: float) -> list[Tensor]:
    arguments = ["bench", "shapes", shape, "--numel", str(numel), "--zeros", str(zeros)]
    try:
        found = run_octavo(command, *arguments)["tensors"]
    except ValueError as error:
        raise SystemExit(str(error)) from error
    return [
        Tensor(
            tuple(each["shape"]),
            RowRule(**each["gradient"]) if "gradient" in each else None,
            each.get("zero_weights", False),
        )
        for each in found
    ]


def zipf(ranks: int, device: torch.device) -> torch.Tensor:
    """Returns the weights of the ranks 1, 2 ...: one over the rank."""
    return 1.0 / torch.arange(1, ranks + 1, dtype=torch.float64, device=device)


class Workload:
    """Parameters with gradients. refill() writes the gradients of the next batch, at the same addresses."""

    def __init__(self, tensors: Sequence[Tensor], dtype: torch.dtype, device: torch.device) -> None:
        self._tensors, self._device = tensors, device
        self._generator = torch.Generator(device).manual_seed(1)
        self._orders: dict[RowRule, torch.Tensor] = {}  # rows by rank; tensors with the same rule share them
        self.changes = any(tensor.rule is not None and tensor.rule.draws > 0 for tensor in tensors)
        self.params: list[torch.nn.Parameter] = []
        for tensor in tensors:
            weights, grads = (torch.zeros(tensor.shape, dtype=dtype, device=device) for _ in range(2))
            if not tensor.zero_weights:
                weights.normal_(0.0, WEIGHT, generator=self._generator)
            param = torch.nn.Parameter(weights)
            param.grad = grads
            self.params.append(param)
        self.refill()

    def refill(self) -> None:
        batch: dict[RowRule, torch.Tensor] = {}  # all tensors of an expert have the same rows
        for tensor, param in zip(self._tensors, self.params, strict=True):
            assert param.grad is not None
            if tensor.rule is None:
                param.grad.normal_(0.0, GRADIENT, generator=self._generator)
                continue
            if tensor.rule not in batch:
                batch[tensor.rule] = self._touched(tensor.rule)
            self._fill_rows(param.grad.view(-1), tensor.rule, batch[tensor.rule])

    def _touched(self, rule: RowRule) -> torch.Tensor:
        """Returns the rows of this batch, each once."""
        if rule not in self._orders:
            order = torch.randperm(rule.rows, generator=self._generator, device=self._device)
            self._orders[rule] = order[: rule.alive]
        alive = self._orders[rule]
        if rule.draws == 0:
            return alive
        weights = zipf(rule.alive, self._device)
        drawn = torch.multinomial(weights, rule.draws, replacement=True, generator=self._generator)
        return alive[drawn].unique()

    def _fill_rows(self, grad: torch.Tensor, rule: RowRule, touched: torch.Tensor) -> None:
        if rule.draws > 0:  # a few rows of a matrix
            values = torch.empty(len(touched), rule.row, dtype=grad.dtype, device=self._device)
            values.normal_(0.0, GRADIENT, generator=self._generator)
            grad.zero_().view(rule.rows, rule.row).index_copy_(0, touched, values)
            return
        empty = torch.ones(rule.rows, dtype=torch.bool, device=self._device).index_fill_(0, touched, False)
        grad.normal_(0.0, GRADIENT, generator=self._generator)
        grad.masked_fill_(empty.repeat_interleave(rule.row)[: grad.numel()], 0.0)
