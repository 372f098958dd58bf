"""Warnings that name a line of the program, not of this package."""

from __future__ import annotations

import os
import sys
import warnings

_HERE = os.path.dirname(__file__) + os.sep


def warn(message: str) -> None:
    """Warns with the line that called this package, or that called torch's Optimizer."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_HERE)
        or frame.f_globals.get("__name__") in ("torch.optim.optimizer", "torch._compile", "contextlib")
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
