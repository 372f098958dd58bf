"""Training runs of the convergence benchmark in parallel lanes.

A Lane is one arm with one beta2. It captures its complete step in a CUDA graph once, and loads one seed after
another. Each lane has its own stream, so that the kernels of several small models share the GPU; processes
would only take turns. On the CPU the same step runs eagerly.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import gpt
import torch
from arms import Arm
from run_inputs import DTYPES, Corpus, SeedInputs, Settings
from torch import Tensor

WARM_UPS = 3  # eager steps before the capture


@functools.cache
def compiled_loss() -> Callable[..., Tensor]:
    """Returns one function for all lanes: their shapes are equal, so it compiles once."""
    return torch.compile(gpt.loss, dynamic=False)


class Lane:
    """One arm with one beta2 on one stream."""

    def __init__(
        self, settings: Settings, corpus: Corpus, arm: str, beta2: float, device: torch.device
    ) -> None:
        self.settings, self.corpus, self.name, self.beta2, self.device = settings, corpus, arm, beta2, device
        self.parameters = [torch.zeros(s, device=device) for s in gpt.parameter_shapes(settings.shape)]
        for parameter in self.parameters:
            parameter.grad = torch.zeros_like(parameter)
        # The model computes with copies in its precision, as under autocast, and their gradients are copied
        # back in one or two launches. The addresses of the parameters do not change.
        self.copies = [p.to(DTYPES[settings.precision], copy=True).requires_grad_() for p in self.parameters]
        self.columns = torch.arange(settings.block + 1, device=device)
        self.rates = settings.schedule().to(device)
        self.lr = torch.zeros((), device=device)
        self.clock = torch.zeros(1, dtype=torch.int64, device=device)
        self.losses = torch.zeros(settings.steps, device=device)
        self.curve = torch.zeros(len(settings.eval_steps), dtype=torch.float64, device=device)
        self.offsets = torch.zeros(settings.steps, settings.batch, dtype=torch.int64, device=device)
        self.picks = torch.zeros(
            settings.steps, settings.shape.masks, settings.batch, dtype=torch.int64, device=device
        )
        self.train_loss = compiled_loss() if settings.compiled else gpt.loss
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        options = {"beta2": beta2, "weight_decay": settings.weight_decay, "lr": self.lr}
        self.arm = Arm(arm, self.parameters, graph=self.stream is not None, **options)
        self.seed, self.marks = -1, {"init": "", "data": ""}

    def current(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def load(self, seed: int, inputs: SeedInputs) -> None:
        """Copies the inputs of a seed into the lane's memory; captures the step the first time."""
        if self.stream is not None and self.graph is None:
            torch.cuda.synchronize()  # another stream has created the tensors
            self._copy(inputs)
            self._capture()
        self._copy(inputs)
        self.seed, self.marks = seed, inputs.marks

    @torch.no_grad()
    def _copy(self, inputs: SeedInputs) -> None:
        with self.current():
            for parameter, start in zip(self.parameters, inputs.parameters, strict=True):
                parameter.copy_(start)
            torch._foreach_copy_(self.copies, self.parameters)
            self.offsets.copy_(inputs.offsets)
            self.picks.copy_(inputs.picks)
            self.clock.zero_()
            self.arm.reset()

    def _capture(self) -> None:
        with self.current():
            for _ in range(WARM_UPS):
                self._step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self._step()
        torch.cuda.synchronize()

    def _step(self) -> None:
        corpus, clock = self.corpus, self.clock
        starts = self.offsets.index_select(0, clock)[0]
        window = corpus.train[starts[:, None] + self.columns]
        masks = None
        if corpus.pool is not None:
            masks = [corpus.pool.index_select(0, rows) for rows in self.picks.index_select(0, clock)[0]]
        for copy in self.copies:
            copy.grad = None
        loss = self.train_loss(self.settings.shape, self.copies, window, masks)
        loss.backward()
        with torch.no_grad():
            torch._foreach_copy_([p.grad for p in self.parameters], [c.grad for c in self.copies])
            self.lr.copy_(self.rates.index_select(0, clock)[0])
            self.arm.step()
            torch._foreach_copy_(self.copies, self.parameters)
            self.losses.index_copy_(0, clock, loss.detach().view(1))
            clock.add_(1)

    def advance(self) -> None:
        with self.current():
            if self.graph is None:
                self._step()
            else:
                self.graph.replay()

    @torch.no_grad()
    def evaluate(self, slot: int) -> None:
        """Writes the loss of all validation windows into the curve; does not wait."""
        windows = self.corpus.validation
        with self.current():
            total = torch.zeros((), dtype=torch.float64, device=self.device)
            for batch in windows.split(2 * self.settings.batch):
                part = gpt.loss(self.settings.shape, self.copies, batch, None)
                total += part.double() * len(batch)
            self.curve[slot] = total / len(windows)

    def result(self) -> dict[str, Any]:
        """Waits for the run, and returns its record."""
        if self.stream is not None:
            self.stream.synchronize()
        ends = self.settings.eval_steps
        spans = zip([0, *ends[:-1]], ends, strict=True)
        train = [float(self.losses[a:b].double().mean()) for a, b in spans]
        curve = self.curve.tolist()
        return {
            "arm": self.name,
            "seed": self.seed,
            "beta2": self.beta2,
            "loss": curve[-1],
            "steps": ends,
            "validation": curve,
            "train": train,
            **self.marks,
            "state_bytes": self.arm.state_bytes(),
        }
