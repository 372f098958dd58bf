"""Warnings that name the line of the program, however deep inside the package they come up."""

from __future__ import annotations

import os
import sys
import warnings

_HERE = os.path.dirname(__file__) + os.sep


def warn(message: str) -> None:
    """A warning of the line that called this package, or torch's Optimizer for it."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_HERE)
        or frame.f_globals.get("__name__") in ("torch.optim.optimizer", "torch._compile", "contextlib")
    ):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
