"""The model of the convergence benchmark: a small character GPT, as a function of a list of parameters.

It computes in the parameters' dtype up to the logits, the residual stream included, and in fp32 after them.
The function draws no random numbers: dropout masks are tensor arguments, so that all arms get the same masks
and a CUDA graph can be replayed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

PER_LAYER = 6  # parameters of a layer


@dataclass(frozen=True)
class Shape:
    vocabulary: int
    layers: int
    heads: int
    width: int
    block: int

    @property
    def classes(self) -> int:
        """Rows of the token table: the vocabulary, rounded up to a multiple of 8 for tensor cores."""
        return -(-self.vocabulary // 8) * 8

    @property
    def masks(self) -> int:
        """Number of dropout masks: the embedding and the two branches of each layer."""
        return 2 * self.layers + 1


def parameter_shapes(shape: Shape) -> list[tuple[int, ...]]:
    """Returns the shapes of tokens (also the output layer), positions, the layers and the last norm."""
    w = shape.width
    layer: list[tuple[int, ...]] = [(w,), (3 * w, w), (w, w), (w,), (4 * w, w), (w, 4 * w)]
    return [(shape.classes, w), (shape.block, w), *(layer * shape.layers), (w,)]


def initial(shape: Shape, seed: int) -> list[Tensor]:
    """Returns gains of 1 and normal matrices: 0.02, divided by sqrt(2 layers) at the end of a branch."""
    generator = torch.Generator().manual_seed(seed)
    tensors = []
    for index, size in enumerate(parameter_shapes(shape)):
        if len(size) == 1:
            tensors.append(torch.ones(size))
            continue
        ends_branch = index >= 2 and (index - 2) % PER_LAYER in (2, 5)
        std = 0.02 / math.sqrt(2 * shape.layers) if ends_branch else 0.02
        tensors.append(std * torch.randn(size, generator=generator))
    return tensors


def _attention(x: Tensor, qkv: Tensor, out: Tensor, heads: int) -> Tensor:
    batch, length, width = x.shape
    q, k, v = F.linear(x, qkv).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(mixed.transpose(1, 2).reshape(batch, length, width), out)


def _add(x: Tensor, branch: Tensor, mask: Tensor | None) -> Tensor:
    return x + branch if mask is None else torch.addcmul(x, branch, mask)


def loss(
    shape: Shape, parameters: Sequence[Tensor], window: Tensor, masks: Sequence[Tensor] | None
) -> Tensor:
    """Returns the mean nats per character of window[:, 1:] given window[:, :-1]; int64, block + 1 columns."""
    tokens, positions, *layers, last = parameters
    # A matmul with one-hot rows replaces the look-up: its gradient is a matmul too, without atomics.
    classes = torch.arange(shape.classes, device=window.device)
    x = F.linear((window[:, :-1, None] == classes).to(tokens.dtype), tokens.t()) + positions
    if masks is not None:
        x = x * masks[0]
    for index in range(shape.layers):
        norm1, qkv, out, norm2, up, down = layers[PER_LAYER * index : PER_LAYER * (index + 1)]
        mask1, mask2 = (None, None) if masks is None else masks[2 * index + 1 : 2 * index + 3]
        x = _add(x, _attention(F.layer_norm(x, norm1.shape, norm1), qkv, out, shape.heads), mask1)
        x = _add(x, F.linear(F.gelu(F.linear(F.layer_norm(x, norm2.shape, norm2), up)), down), mask2)
    logits = F.linear(F.layer_norm(x, last.shape, last), tokens)
    return F.cross_entropy(logits.float().view(-1, shape.classes), window[:, 1:].reshape(-1))
