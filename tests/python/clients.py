"""What the tests inside other libraries' training loops share.

A loop is right if its optimizer was given what the loop promises (learning rates, groups, clipped gradients)
and did with it what it does without the loop: `record` notes the gradients of every step, `replay` gives them
to an optimizer made by hand, and the two must agree in every bit.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", DO_NOT_TRACK="1", TOKENIZERS_PARALLELISM="false"
)

import torch
from models import same_params
from torch import Tensor, nn

VOCABULARY, LENGTH = 64, 16
Steps = list[dict[str, Tensor]]


class Counting(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Sequences that count up from a random token: soon learnt."""

    def __init__(self, size: int = 64) -> None:
        starts = torch.randint(VOCABULARY, (size, 1), generator=torch.Generator().manual_seed(0))
        self.ids = (starts + torch.arange(LENGTH)) % VOCABULARY

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.ids[index], "labels": self.ids[index]}


class NextToken(nn.Module):
    """The next token from the last: an embedding, a norm, and layers above and below min_quantized_size."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, 80)
        self.norm = nn.LayerNorm(80)
        self.hidden = nn.Linear(80, 96)
        self.head = nn.Linear(96, VOCABULARY)

    def forward(self, ids: Tensor) -> Tensor:
        """The loss of a batch."""
        logits = self.head(torch.relu(self.hidden(self.norm(self.embedding(ids[:, :-1])))))
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


def batches(size: int = 8) -> torch.utils.data.DataLoader[Any]:
    """Of Counting(), in its order."""
    return torch.utils.data.DataLoader(Counting(), batch_size=size)


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices with decay; norms and biases without."""
    named = dict(model.named_parameters())
    spared = [name for name in named if "norm" in name or name.endswith("bias")]
    assert spared
    return [
        {"params": [p for name, p in named.items() if name not in spared], "weight_decay": weight_decay},
        {"params": [named[name] for name in spared], "weight_decay": 0.0},
    ]


def record(optimizer: torch.optim.Optimizer, model: nn.Module) -> Steps:
    """A list that gets the gradients of every step from now on, as the step saw them."""
    steps: Steps = []

    def note(*_: Any) -> None:
        steps.append({name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None})

    optimizer.register_step_post_hook(note)
    return steps


def replay(optimizer: torch.optim.Optimizer, model: nn.Module, steps: Steps, rates: Sequence[float]) -> None:
    assert len(steps) == len(rates)
    for grads, rate in zip(steps, rates, strict=True):
        for name, param in model.named_parameters():
            param.grad = grads.get(name)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()


def scheduled_rates(make: Any, lr: float, count: int) -> list[float]:
    """The learning rates of `count` steps under the scheduler that `make` makes of an optimizer."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    scheduler, rates = make(optimizer), []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def norm(grads: dict[str, Tensor]) -> float:
    return float(torch.stack([g.double().norm() for g in grads.values()]).norm())


def same_models(a: nn.Module, b: nn.Module) -> bool:
    return same_params(list(a.parameters()), list(b.parameters()))


def state_dtypes(optimizer: torch.optim.Optimizer, params: Iterable[Tensor]) -> set[torch.dtype]:
    return {optimizer.state[p]["exp_avg"].dtype for p in params}


def run_guide(name: str, number: int, names: dict[str, Any]) -> dict[str, Any]:
    """Runs a block of Python of docs/guides with `names` defined; returns what is defined afterwards."""
    guide = Path(__file__).resolve().parents[2] / "docs/guides" / name
    blocks = re.findall(r"^```python\n(.*?)^```$", guide.read_text(), re.MULTILINE | re.DOTALL)
    scope = dict(names)
    exec(compile(blocks[number], f"{guide} [{number}]", "exec"), scope)
    return scope
