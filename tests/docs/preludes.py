"""What the Python snippets of a page find defined: a model, a loss, files. Each page names its prelude."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pages
import torch
from torch import nn


class Decoder(nn.Module):
    """A small language model with the names of most: embed_tokens, layers, norm, lm_head."""

    def __init__(self, width: int = 64, vocabulary: int = 128) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.lm_head(self.norm(x))


class Losses:
    """`loss` of the snippets: each backward pass computes a new loss."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def backward(self) -> None:
        tokens = torch.randint(128, (2, 9))
        out = self.model(tokens[:, :-1])
        nn.functional.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten()).backward()


def model() -> dict[str, Any]:
    """A model, and a loss that can be computed any number of times."""
    torch.manual_seed(0)
    module = Decoder()
    return {"torch": torch, "model": module, "loss": Losses(module)}


def checkpoint() -> dict[str, Any]:
    """The same, with the file of a run of torch's AdamW."""
    names = model()
    theirs = torch.optim.AdamW(names["model"].parameters())
    names["loss"].backward()
    theirs.step()
    torch.save(theirs.state_dict(), "optimizer.pt")
    return names


def distributed() -> dict[str, Any]:
    """The same, in a process group of one process, and the folder of a checkpoint."""
    if not torch.distributed.is_initialized():
        store = torch.distributed.FileStore(f"{os.getcwd()}/store", 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return {**model(), "folder": "checkpoint"}


def runs() -> dict[str, Any]:
    """The folders of four runs, as the tests of the report make them."""
    sys.path.insert(0, str(pages.ROOT / "tests/apps"))
    import fake_runs

    for seed, name in enumerate(("first", "fp32", "8bit", "4bit")):
        fake_runs.write_run(Path("runs") / name, fake_runs.realistic(seed=seed, steps=100))
    return {}
