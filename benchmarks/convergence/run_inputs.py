"""The inputs of a run of the convergence benchmark: settings, text, and everything random.

All random values depend only on the seed and are drawn before the run starts (initial weights, order of the
text, dropout masks), on the CPU and as tables. Therefore the arms of a seed are paired.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import gpt
import torch
from torch import Tensor

VALIDATION = 0.1  # share of the text, at its end
MASK_ROWS = 512  # sequences in the pool of dropout masks
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@dataclass(frozen=True)
class Settings:
    """The settings that two runs must share to be compared."""

    text_crc: str
    vocabulary: int
    layers: int = 6
    heads: int = 6
    width: int = 384
    block: int = 256
    batch: int = 64
    steps: int = 1000
    warm_up: int = 100
    lr: float = 1e-3
    lr_end: float = 0.0  # share of lr
    weight_decay: float = 0.1
    dropout: float = 0.2
    eval_every: int = 100
    precision: str = "bf16"
    compiled: bool = False
    device: str = "cpu"

    @property
    def shape(self) -> gpt.Shape:
        return gpt.Shape(self.vocabulary, self.layers, self.heads, self.width, self.block)

    @property
    def eval_steps(self) -> list[int]:
        return [s for s in range(1, self.steps + 1) if s % self.eval_every == 0 or s == self.steps]

    def schedule(self) -> Tensor:
        """Returns the learning rate of each step: a linear rise, then half a cosine down to lr * lr_end."""
        rates = []
        for step in range(self.steps):
            if step < self.warm_up:
                rates.append(self.lr * (step + 1) / self.warm_up)
                continue
            part = (step - self.warm_up) / max(1, self.steps - 1 - self.warm_up)
            rates.append(self.lr * (self.lr_end + (1 - self.lr_end) * 0.5 * (1 + math.cos(math.pi * part))))
        return torch.tensor(rates, dtype=torch.float32)


def read_text(data: bytes) -> tuple[Tensor, int, str]:
    """Returns the text as indices into its distinct bytes, their number, and the text's CRC-32."""
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    values, tokens = torch.unique(raw, return_inverse=True)
    return tokens, len(values), f"{zlib.crc32(data):08x}"


@dataclass(frozen=True)
class SeedInputs:
    """The random inputs of a seed, as tables on the CPU."""

    parameters: list[Tensor]
    offsets: Tensor  # steps, batch: the start of each sequence in the text
    picks: Tensor  # steps, masks, batch: rows of the pool of masks

    @staticmethod
    def of(settings: Settings, seed: int, train_length: int) -> SeedInputs:
        generator = torch.Generator().manual_seed(2 * seed + 1)
        starts = train_length - settings.block
        size = (settings.steps, settings.batch)
        offsets = torch.randint(starts, size, generator=generator)
        masks = (settings.steps, settings.shape.masks, settings.batch)
        picks = torch.randint(MASK_ROWS, masks, generator=generator)
        return SeedInputs(gpt.initial(settings.shape, 2 * seed), offsets, picks)

    @functools.cached_property
    def marks(self) -> dict[str, str]:
        """Returns the checksums that the arms of a seed must share."""

        def crc(tensors: Sequence[Tensor]) -> str:
            value = 0
            for tensor in tensors:
                value = zlib.crc32(tensor.numpy().tobytes(), value)
            return f"{value:08x}"

        return {"init": crc(self.parameters), "data": crc([self.offsets, self.picks])}


class Corpus:
    """The text on the device: the training part, the validation windows, and the pool of dropout masks."""

    def __init__(self, settings: Settings, tokens: Tensor, device: torch.device) -> None:
        cut = int(len(tokens) * (1 - VALIDATION))
        block = settings.block
        windows = (len(tokens) - cut - 1) // block
        if windows < 1 or cut <= block:
            raise ValueError(
                f"the text has {len(tokens)} characters, of which {len(tokens) - cut} are for validation: "
                f"less than one block of {block}; give a longer text or a smaller --block"
            )
        starts = cut + block * torch.arange(windows)
        self.train = tokens[:cut].to(device)
        self.validation = tokens[starts[:, None] + torch.arange(block + 1)].to(device)
        self.pool: Tensor | None = None
        if settings.dropout > 0:
            keep, generator = 1 - settings.dropout, torch.Generator().manual_seed(0)
            pool = torch.empty(MASK_ROWS, block, settings.width, dtype=torch.bfloat16)
            pool.bernoulli_(keep, generator=generator)
            self.pool = (pool.to(device) / keep).to(DTYPES[settings.precision])
