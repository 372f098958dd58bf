"""FP8 matmuls: `matmul`, `Linear`, `convert` and `autocast`.

A matmul y = x @ w has two more in its backward pass. Each of the three is in FP8, or is computed by torch if
that is faster for its shape or FP8 does not support it. octavo/fp8.h defines formats, scales and casts.

A step ends when an optimizer of torch.optim (Octavo's included) has stepped: then scales are updated, and
weights are cast again. If something else writes the weights, call `end_step`.
"""

from __future__ import annotations

from .linear import Linear, convert
from .matmul import matmul
from .recipe import Recipe, autocast
from .saved import load_state_dict, state_dict
from .steps import end_step

__all__ = [
    "Linear",
    "Recipe",
    "autocast",
    "convert",
    "end_step",
    "load_state_dict",
    "matmul",
    "state_dict",
]
