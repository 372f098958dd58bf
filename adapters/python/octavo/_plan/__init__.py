"""octavo.plan: what training a model will take of a GPU, before its first step.

One training step runs on fake tensors, which have shapes and no memory. What it would allocate and compute
goes to the library, which knows torch's allocator and the GPUs (octavo/plan.h).
"""

from __future__ import annotations

from .plan import PlanError, plan
from .report import PlanReport

__all__ = ["PlanError", "PlanReport", "plan"]
