"""Trains a classifier on images in memory and measures its accuracy on held-out images.

Weights, batches and learning rates depend only on the seed, so optimizers are compared in paired seeds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from stopwatch import wait
from torch.nn import functional as fn

WARM_UP = 0.1  # share of the steps during which the learning rate rises


@dataclass(frozen=True)
class Images:
    """Pixels as [image, channel, row, column], in a dtype that the caller's `prepare` accepts."""

    pixels: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, rows: torch.Tensor) -> Images:
        return Images(self.pixels[rows], self.labels[rows])


@dataclass(frozen=True)
class Training:
    """The options of one run.

    `prepare` turns pixels into a batch of float images on the device. `augment` changes the pixels of a
    training batch with random numbers of the generator.
    """

    epochs: int
    batch: int
    device: torch.device
    prepare: Callable[[torch.Tensor], torch.Tensor]
    amp: bool  # autocast to bf16
    augment: Callable[[torch.Tensor, torch.Generator], torch.Tensor]


@dataclass(frozen=True)
class Trained:
    loss: float  # mean of the last epoch
    epoch_s: float  # the last epoch


def schedule(steps: int) -> Callable[[int], float]:
    """Returns the factor of the learning rate by step: a linear warm-up, then half a cosine down to zero."""
    rising = max(1, round(WARM_UP * steps))

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / rising
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))

    return factor


def train(model: Any, optimizer: Any, images: Images, seed: int, training: Training) -> Trained:
    """Trains on all complete batches of every epoch; the learning rate changes at every step."""
    each = len(images) // training.batch
    if each < 1:
        raise ValueError(f"{len(images)} images to train on, fewer than a batch of {training.batch}")
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule(each * training.epochs))
    generator = torch.Generator().manual_seed(seed)
    model.train()
    losses: list[torch.Tensor] = []
    start = 0.0
    for _ in range(training.epochs):
        wait(training.device)
        start, losses = time.perf_counter(), []
        rows = torch.randperm(len(images), generator=generator)
        for batch in rows[: each * training.batch].view(each, training.batch):
            chosen = images.select(batch)
            pixels = training.prepare(training.augment(chosen.pixels, generator))
            with torch.autocast(training.device.type, torch.bfloat16, enabled=training.amp):
                output = model(pixels)
                loss = fn.cross_entropy(output, chosen.labels.to(training.device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            losses.append(loss.detach())
    wait(training.device)
    return Trained(float(torch.stack(losses).mean()), time.perf_counter() - start)


@torch.no_grad()
def accuracy(model: Any, images: Images, training: Training) -> float:
    """Returns the percentage of the images whose class the model predicts."""
    model.eval()
    hits = torch.zeros((), device=training.device)
    for batch in torch.arange(len(images)).split(4 * training.batch):
        chosen = images.select(batch)
        with torch.autocast(training.device.type, torch.bfloat16, enabled=training.amp):
            output = model(training.prepare(chosen.pixels))
        hits += (output.argmax(-1) == chosen.labels.to(training.device)).sum()
    return 100 * float(hits) / len(images)
