"""A vision transformer in plain torch, and generated images to classify.

ViT-H/14 of 224 pixels is the default: 32 layers, width 1280, 16 heads, 630.8M parameters with 45 classes. An
image is the pattern of its class with noise, which is drawn again for every batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as fn


@dataclass(frozen=True)
class Config:
    layers: int = 32
    width: int = 1280
    heads: int = 16
    image: int = 224
    patch: int = 14
    classes: int = 45


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = fn.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(fn.gelu(self.up(self.norm2(x))))


class VisionTransformer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        width, patches = config.width, (config.image // config.patch) ** 2
        self.patches = nn.Conv2d(3, width, config.patch, config.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, patches + 1, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, config.heads) for _ in range(config.layers)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, config.classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1)
        return self.head(self.norm(self.blocks(tokens + self.positions))[:, 0])


class Images:
    """Generates batches without end; they depend on the seed and the device."""

    def __init__(self, config: Config, batch: int, device: torch.device, seed: int = 1) -> None:
        self._generator = torch.Generator(device).manual_seed(seed)
        self._config, self._batch, self._device = config, batch, device
        coarse = self._draw(config.classes, 3, 8, 8)
        self._patterns = fn.interpolate(coarse, (config.image, config.image), mode="bilinear")

    def _draw(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator, device=self._device)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns images and their classes."""
        labels = torch.randint(
            self._config.classes, (self._batch,), generator=self._generator, device=self._device
        )
        noise = self._draw(self._batch, 3, self._config.image, self._config.image)
        return self._patterns[labels] + 0.5 * noise, labels
