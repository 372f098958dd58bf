"""The buckets of DistributedDataParallel. Gradients are views of buckets, and a bucket is summed over all
ranks when its last gradient is complete.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ._core import COMMUNICATION
from .trace import Recorder

_FIRST, _OTHERS = 1 << 20, 25 << 20  # bytes, as in torch


class Buckets:
    def __init__(self, recorder: Recorder, params: Sequence[Tensor]) -> None:
        self._recorder = recorder
        self.sizes: list[int] = []
        self.complete: dict[int, int] = {}  # kernels of the backward pass before, by bucket
        self._views: dict[Tensor, tuple[int, Tensor]] = {}
        self._left: list[int] = []
        before, recorder.owner = recorder.owner, COMMUNICATION
        some: list[Tensor] = []
        for param in reversed([p for p in params if p.requires_grad]):
            if some and some[0].dtype != param.dtype:
                self._add(some)
                some = []
            some.append(param)
            if sum(p.nbytes for p in some) >= (_OTHERS if self.sizes else _FIRST):
                self._add(some)
                some = []
        self._add(some)
        recorder.owner = before
        self._counts = [
            sum(place == at for at, _ in self._views.values()) for place in range(len(self.sizes))
        ]

    def _add(self, params: Sequence[Tensor]) -> None:
        if not params:
            return
        count = sum(p.numel() for p in params)
        memory = torch.empty(count, dtype=params[0].dtype, device=params[0].device)
        offset = 0
        for param in params:
            view = memory[offset : offset + param.numel()].as_strided(param.shape, param.stride(), offset)
            self._views[param] = len(self.sizes), view
            offset += param.numel()
        self.sizes.append(count * params[0].element_size())

    def begin(self) -> None:
        """Called when the backward pass begins."""
        self._left, self.complete, self._begin = list(self._counts), {}, len(self._recorder.kernels)

    def completed(self, param: Tensor) -> None:
        place, view = self._views[param]
        if param.grad is not view:
            with torch.no_grad():
                param.grad = view.copy_(param.grad) if param.grad is not None else view
        self._left[place] -= 1
        if self._left[place] == 0:
            self.complete[place] = len(self._recorder.kernels) - self._begin
