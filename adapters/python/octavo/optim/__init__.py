"""Low-bit optimizers for PyTorch: `from octavo.optim import AdamW8bit` in place of torchao's or
bitsandbytes'.

Adam, AdamW, SGD and Lion take `state="8bit" | "4bit" | "fp8" | "bf16" | "fp32"`; names such as AdamW8bit,
AdamW4bit, AdamWFp8, Adam32bit, Lion8bit and PagedAdamW8bit fix it.
"""

from __future__ import annotations

from typing import Any

from .base import Optimizer
from .classes import DERIVED, SGD, Adam, AdamW, Lion
from .groups import GlobalOptimManager, param_groups, set_state

globals().update(DERIVED)

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "GlobalOptimManager",
    "Lion",
    "Optimizer",
    "param_groups",
    "set_state",
    *sorted(DERIVED),
]

_NOT_HERE = ("AdEMAMix", "RMSprop", "Adagrad", "LAMB", "LARS")


def __getattr__(name: str) -> Any:
    if name.removeprefix("Paged").startswith(_NOT_HERE):
        raise AttributeError(
            f"octavo.optim has no {name}: of bitsandbytes' optimizers it has Adam, AdamW, SGD and Lion"
        )
    if name == "CPUOffloadOptimizer":
        raise AttributeError("octavo.optim has no CPUOffloadOptimizer: offload is not built in yet")
    raise AttributeError(f"module 'octavo.optim' has no attribute {name!r}")
