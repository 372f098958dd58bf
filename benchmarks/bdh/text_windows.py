"""Cuts a text into windows of bytes on a device, as train/data does.

The last tenth is held out (at most 8 MiB, at least one window). A window of block_size tokens is followed by
one more byte, its last target.
"""

from __future__ import annotations

import torch
from torch import Tensor

MOST_HELD_OUT = 8 << 20


class Text:
    def __init__(self, data: bytes, block_size: int, device: torch.device) -> None:
        window = block_size + 1
        if len(data) < 2 * window:
            raise ValueError(
                f"the text has {len(data)} bytes, and a block_size of {block_size} takes {2 * window}: "
                "use more text or a smaller --block-size"
            )
        self.block_size = block_size
        self.cut = len(data) - max(min(len(data) // 10, MOST_HELD_OUT), window)
        self.tokens = torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
        self.reach = torch.arange(window, device=device)

    def training_starts(self, steps: int, batch: int, seed: int) -> Tensor:
        """Returns random windows of the training part, which depend only on the seed."""
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(self.cut - self.block_size, (steps, batch), generator=generator)
        return starts.to(self.tokens.device)

    def held_out_starts(self) -> Tensor:
        """Returns all windows of the held-out part, one after another."""
        count = (len(self.tokens) - self.cut - 1) // self.block_size
        return self.cut + self.block_size * torch.arange(count, device=self.tokens.device)

    def windows(self, starts: Tensor) -> tuple[Tensor, Tensor]:
        """Returns tokens and targets."""
        both = self.tokens[starts[:, None] + self.reach].long()
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()
