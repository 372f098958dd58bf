"""The classes whose names fix the format of the states, or say that they are paged: torchao's and
bitsandbytes' names, and the same for every other algorithm and format.

They are written out so that type checkers, editors and help() see them.
"""

from __future__ import annotations

from .classes import SGD, Adam, AdamW, Lion


class Adam8bit(Adam):
    """Adam with 8bit states."""

    _state = "8bit"


class Adam4bit(Adam):
    """Adam with 4bit states."""

    _state = "4bit"


class AdamFp8(Adam):
    """Adam with fp8 states."""

    _state = "fp8"


class Adam32bit(Adam):
    """Adam with fp32 states."""

    _state = "fp32"


class PagedAdam(Adam):
    """Adam with the states that `state` names, kept on the device until offload exists."""

    _paged = True


class PagedAdam8bit(Adam8bit):
    """Adam with 8bit states, kept on the device until offload exists."""

    _paged = True


class PagedAdam32bit(Adam32bit):
    """Adam with fp32 states, kept on the device until offload exists."""

    _paged = True


class AdamW8bit(AdamW):
    """AdamW with 8bit states."""

    _state = "8bit"


class AdamW4bit(AdamW):
    """AdamW with 4bit states."""

    _state = "4bit"


class AdamWFp8(AdamW):
    """AdamW with fp8 states."""

    _state = "fp8"


class AdamW32bit(AdamW):
    """AdamW with fp32 states."""

    _state = "fp32"


class PagedAdamW(AdamW):
    """AdamW with the states that `state` names, kept on the device until offload exists."""

    _paged = True


class PagedAdamW8bit(AdamW8bit):
    """AdamW with 8bit states, kept on the device until offload exists."""

    _paged = True


class PagedAdamW32bit(AdamW32bit):
    """AdamW with fp32 states, kept on the device until offload exists."""

    _paged = True


class SGD8bit(SGD):
    """SGD with 8bit states."""

    _state = "8bit"


class SGD4bit(SGD):
    """SGD with 4bit states."""

    _state = "4bit"


class SGDFp8(SGD):
    """SGD with fp8 states."""

    _state = "fp8"


class SGD32bit(SGD):
    """SGD with fp32 states."""

    _state = "fp32"


class Lion8bit(Lion):
    """Lion with 8bit states."""

    _state = "8bit"


class Lion4bit(Lion):
    """Lion with 4bit states."""

    _state = "4bit"


class LionFp8(Lion):
    """Lion with fp8 states."""

    _state = "fp8"


class Lion32bit(Lion):
    """Lion with fp32 states."""

    _state = "fp32"


class PagedLion(Lion):
    """Lion with the states that `state` names, kept on the device until offload exists."""

    _paged = True


class PagedLion8bit(Lion8bit):
    """Lion with 8bit states, kept on the device until offload exists."""

    _paged = True


class PagedLion32bit(Lion32bit):
    """Lion with fp32 states, kept on the device until offload exists."""

    _paged = True


for _value in list(globals().values()):
    if isinstance(_value, type) and _value.__module__ == __name__:
        _value.__module__ = "octavo.optim"  # where users and pickles find them, and where they are listed
