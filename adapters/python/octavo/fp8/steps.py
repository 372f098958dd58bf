"""When a step ends: scales are updated, and codes of weights are no longer valid."""

from __future__ import annotations

import torch

from . import arenas

_graph_task = torch._C._current_graph_task_id


class Clock:
    """`epoch` counts what may have changed weights."""

    def __init__(self) -> None:
        self.epoch = 0
        self.pending = False
        # A step is part of a CUDA graph: each replay writes weights, and nothing here sees it.
        self.captured = False


clock = Clock()


def in_backward() -> bool:
    """Whether autograd is at work in this thread: a forward then is one that is made once more."""
    return bool(_graph_task() != -1)


def _capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def count_step() -> None:
    """Weights may have changed: they are cast anew when they are next used."""
    clock.epoch += 1
    clock.captured = clock.captured or _capturing()


@torch.no_grad()
def end_step(skipped: bool = False) -> None:
    """Ends a step of all weights: scales follow the maxima of the step, and weights are cast anew when they
    are next used.

    Every optimizer of torch.optim does it after its step, for the weights that are its parameters. Call it
    where something else writes the weights. With skipped=True the maxima of the step are forgotten: where
    gradients were not finite and no optimizer has stepped.
    """
    count_step()
    clock.pending = False
    arenas.end_all(skipped)
