"""Matrix products in FP8: `matmul`, `Linear`, `convert` and `autocast`.

A product y = x @ w has two more in its backward pass; each of the three is in FP8 or, where that is faster
for its shape or not possible, as torch would make it. octavo/fp8.h defines formats, scales and casts.

A step ends when an optimizer of torch.optim (ours are) has stepped: then scales are updated, and weights are
cast anew. Where something else writes the weights, call `end_step`.
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
