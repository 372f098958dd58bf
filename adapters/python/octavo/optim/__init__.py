"""Low-bit optimizers for PyTorch, with the class names of torchao and bitsandbytes.

Every algorithm has a class with the argument `state="8bit" | "fp8" | "fp4" | "4bit" | "bf16" | "fp32"`, and
classes whose names fix the format: the suffix is 8bit, 4bit, Fp8, Fp4 or 32bit, the prefix Paged. classes.py
makes them; __init__.pyi lists them for type checkers.
"""

from __future__ import annotations

from .classes import CLASSES
from .compat.pytorch_lars import PytorchLARS
from .groups import GlobalOptimManager, param_groups, set_state
from .offload.cpu_offload import CPUOffloadOptimizer
from .optimizer import Optimizer

globals().update(CLASSES)
__all__ = [
    "CPUOffloadOptimizer",
    "GlobalOptimManager",
    "Optimizer",
    "PytorchLARS",
    "param_groups",
    "set_state",
]
__all__ += CLASSES
