"""octavo.plan: the GPU memory and time of training a model, before its first step.

One training step runs on fake tensors, which have shapes and no memory. The library gets its allocations and
kernels, and has models of torch's allocator and of GPUs (octavo/plan.h).
"""

from __future__ import annotations

from .plan import PlanError, plan
from .report import PlanReport

__all__ = ["PlanError", "PlanReport", "plan"]
