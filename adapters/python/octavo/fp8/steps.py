"""The end of a step: scales are updated, and the codes of weights become invalid."""

from __future__ import annotations

import torch

from . import arenas

_graph_task = torch._C._current_graph_task_id


class Clock:
    """Counts the events that may have changed weights, in `epoch`."""

    def __init__(self) -> None:
        self.epoch = 0
        self.pending = False
        # True if a CUDA graph contains a step: its replays write weights, and this module does not notice.
        self.captured = False


clock = Clock()


def in_backward() -> bool:
    """Returns True inside a backward pass of this thread: a forward pass there is a recomputation."""
    return bool(_graph_task() != -1)


def _capturing() -> bool:
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def count_step() -> None:
    """Notes that weights may have changed, so they are cast again at their next use."""
    clock.epoch += 1
    clock.captured = clock.captured or _capturing()


@torch.no_grad()
def end_step(skipped: bool = False) -> None:
    """Ends a step of all weights: updates scales from the maxima of the step, and casts weights again at
    their next use.

    Every optimizer of torch.optim does this after its step, for the weights that are its parameters. Call it
    if something else writes the weights. Pass skipped=True if gradients were not finite and no optimizer has
    stepped: then the maxima of the step are dropped.
    """
    count_step()
    clock.pending = False
    arenas.end_all(skipped)
