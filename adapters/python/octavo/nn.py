"""Embeddings that keep 32-bit optimizer states, under bitsandbytes' names."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .optim.groups import set_state


class Embedding(nn.Embedding):
    """nn.Embedding, whose weight keeps fp32 states in any optimizer of octavo.optim."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        set_state(self.weight, state="fp32")


class StableEmbedding(Embedding):
    """An embedding with Xavier-uniform weights and a layer norm behind it, as in the 8-bit
    optimizers' paper."""

    def __init__(self, num_embeddings: int, embedding_dim: int, *args: Any, **kwargs: Any) -> None:
        super().__init__(num_embeddings, embedding_dim, *args, **kwargs)
        # Not in the weight's dtype: bitsandbytes' norm is fp32 beside a bf16 weight, too.
        self.norm = nn.LayerNorm(embedding_dim, device=self.weight.device)

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.padding_idx is not None:
            with torch.no_grad():
                self.weight[self.padding_idx].fill_(0)

    def forward(self, input: Tensor) -> Tensor:
        # The norm in its own precision, whatever the weight's is.
        embedded = super().forward(input).to(self.norm.weight.dtype)
        return self.norm(embedded).to(self.weight.dtype)  # type: ignore[no-any-return]
