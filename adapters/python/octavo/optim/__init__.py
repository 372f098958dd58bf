"""Low-bit optimizers for PyTorch: `from octavo.optim import AdamW8bit` in place of torchao's or
bitsandbytes'.

Adam, AdamW, SGD and Lion take `state="8bit" | "4bit" | "fp8" | "bf16" | "fp32"`; names such as AdamW8bit,
AdamW4bit, AdamWFp8, Adam32bit, Lion8bit and PagedAdamW8bit fix it.
"""

from __future__ import annotations

import sys
from typing import Any

from .base import Optimizer
from .classes import SGD, Adam, AdamW, Lion
from .groups import GlobalOptimManager, param_groups, set_state
from .named import (
    Adam4bit,
    Adam8bit,
    Adam32bit,
    AdamFp8,
    AdamW4bit,
    AdamW8bit,
    AdamW32bit,
    AdamWFp8,
    Lion4bit,
    Lion8bit,
    Lion32bit,
    LionFp8,
    PagedAdam,
    PagedAdam8bit,
    PagedAdam32bit,
    PagedAdamW,
    PagedAdamW8bit,
    PagedAdamW32bit,
    PagedLion,
    PagedLion8bit,
    PagedLion32bit,
    SGD4bit,
    SGD8bit,
    SGD32bit,
    SGDFp8,
)

__all__ = [
    "SGD",
    "Adam",
    "Adam4bit",
    "Adam8bit",
    "Adam32bit",
    "AdamFp8",
    "AdamW",
    "AdamW4bit",
    "AdamW8bit",
    "AdamW32bit",
    "AdamWFp8",
    "GlobalOptimManager",
    "Lion",
    "Lion4bit",
    "Lion8bit",
    "Lion32bit",
    "LionFp8",
    "Optimizer",
    "PagedAdam",
    "PagedAdam8bit",
    "PagedAdam32bit",
    "PagedAdamW",
    "PagedAdamW8bit",
    "PagedAdamW32bit",
    "PagedLion",
    "PagedLion8bit",
    "PagedLion32bit",
    "SGD4bit",
    "SGD8bit",
    "SGD32bit",
    "SGDFp8",
    "param_groups",
    "set_state",
]

_NOT_HERE = ("AdEMAMix", "RMSprop", "Adagrad", "LAMB", "LARS")


def _absent(name: str) -> str | None:
    """What to say of a name of bitsandbytes' or torchao's that is not here."""
    if name.removeprefix("Paged").startswith(_NOT_HERE):
        return f"octavo.optim has no {name}: of bitsandbytes' optimizers it has Adam, AdamW, SGD and Lion"
    if name == "CPUOffloadOptimizer":
        return "octavo.optim has no CPUOffloadOptimizer: offload is not built in yet"
    return None


def __getattr__(name: str) -> Any:
    said = _absent(name)
    # `from octavo.optim import X` asks here first, and has a message of its own for an AttributeError.
    if said and sys._getframe(1).f_code.co_name == "_handle_fromlist":
        raise ImportError(said, name=__name__, path=__file__)
    raise AttributeError(said or f"module 'octavo.optim' has no attribute {name!r}", name=name)
