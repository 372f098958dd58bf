"""Low-bit optimizers for PyTorch, under the names that torchao's and bitsandbytes' have.

Every algorithm has a class that takes `state="8bit" | "4bit" | "fp8" | "bf16" | "fp32"`, and names that fix
it: with 8bit, 4bit, Fp8 or 32bit behind it, and Paged before. They are made in classes.py; __init__.pyi
lists them for type checkers.
"""

from __future__ import annotations

import sys
from typing import Any

from .base import Optimizer
from .classes import CLASSES
from .groups import GlobalOptimManager, param_groups, set_state

globals().update(CLASSES)
__all__ = ["GlobalOptimManager", "Optimizer", "param_groups", "set_state"]
__all__ += CLASSES

# Names of others that are not here, and what to say of them.
_ABSENT = {
    "CPUOffloadOptimizer": "octavo.optim has no CPUOffloadOptimizer: offload is not built in yet",
}


def __getattr__(name: str) -> Any:
    said = _ABSENT.get(name)
    # `from octavo.optim import X` asks here first, and has a message of its own for an AttributeError.
    if said and sys._getframe(1).f_code.co_name == "_handle_fromlist":
        raise ImportError(said, name=__name__, path=__file__)
    raise AttributeError(said or f"module 'octavo.optim' has no attribute {name!r}", name=name)
