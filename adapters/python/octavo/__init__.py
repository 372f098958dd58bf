"""Octavo: low-bit optimizers for PyTorch. `octavo.optim` has the optimizers, `octavo.nn` embeddings with fp32
states and the losses of transducers, `octavo.fp8` FP8 matmuls. `octavo.plan` forecasts the GPU memory and the
time of training a model.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._abi import OctavoError

if TYPE_CHECKING:
    from . import checkpoint, fp8, integrations, nn, ops, optim
    from ._plan import PlanError, PlanReport, plan

__all__ = [
    "OctavoError",
    "PlanError",
    "PlanReport",
    "__version__",
    "checkpoint",
    "fp8",
    "integrations",
    "nn",
    "ops",
    "optim",
    "plan",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from ._abi import library

        return library().octavo_version_string().decode()
    if name in ("checkpoint", "fp8", "integrations", "nn", "ops", "optim"):
        return importlib.import_module(f".{name}", __name__)
    if name in ("PlanError", "PlanReport", "plan"):
        return getattr(importlib.import_module("._plan", __name__), name)
    raise AttributeError(f"module 'octavo' has no attribute {name!r}")
