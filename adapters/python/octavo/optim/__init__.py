"""Low-bit optimizers for PyTorch, under the names that torchao's and bitsandbytes' have.

Every algorithm has a class that takes `state="8bit" | "4bit" | "fp8" | "bf16" | "fp32"`, and names that fix
it: with 8bit, 4bit, Fp8 or 32bit behind it, and Paged before. They are made in classes.py; __init__.pyi
lists them for type checkers.
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
