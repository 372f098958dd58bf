"""Makes AdamW of torch, Octavo, bitsandbytes, torchao and lpmm from parameters and a learning rate.

A package that cannot be imported raises PeerMissingError when its optimizer is made.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import harness  # noqa: F401  must be first: it adds the package of this tree to the import path
import torch

Make = Callable[[Iterable[torch.nn.Parameter], float], Any]


class PeerMissingError(Exception):
    """A peer that cannot be imported."""


def imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except Exception as error:  # a broken build of a peer raises anything
        raise PeerMissingError((f"{type(error).__name__}: {error}".splitlines() or ["?"])[0]) from error


def failure(name: str, error: Exception) -> str:
    """Returns the line that a table prints for a row without a result."""
    if isinstance(error, PeerMissingError):
        return f"skipped: {name}: {error}"
    return f"failed: {name}: {type(error).__name__}: {error}".splitlines()[0]


def torchao_class(name: str) -> Any:
    try:
        return getattr(imported("torchao.optim"), name)
    except PeerMissingError:
        return getattr(imported("torchao.prototype.low_bit_optim"), name)


def torch_fused(params: Iterable[torch.nn.Parameter], lr: float) -> Any:
    return torch.optim.AdamW(params, lr=lr, fused=True)


def torch_default(params: Iterable[torch.nn.Parameter], lr: float) -> Any:
    """torch's AdamW without options: it loops over the tensors on a CPU and uses `foreach` on a GPU."""
    return torch.optim.AdamW(params, lr=lr)


def octavo(state: str, **options: Any) -> Make:
    return lambda params, lr: imported("octavo.optim").AdamW(params, lr=lr, state=state, **options)


def bitsandbytes(name: str) -> Make:
    return lambda params, lr: getattr(imported("bitsandbytes").optim, name)(params, lr=lr)


def torchao(name: str) -> Make:
    return lambda params, lr: torchao_class(name)(params, lr=lr)


def lpmm(**options: Any) -> Make:
    """The 4-bit AdamW of the paper's authors; rank-1 normalization unless `fused`.

    It is on no package index: its setup.py compiles a CUDA extension against the installed torch.
    """
    return lambda params, lr: imported("lpmm.optim").AdamW(params, lr=lr, **options)


def torchao_offload(**options: Any) -> Make:
    """torch's AdamW, stepped on the CPU by torchao as its documentation recommends."""
    return _offload(lambda: torchao_class("CPUOffloadOptimizer"), options)


def octavo_offload(**options: Any) -> Make:
    """octavo's CPUOffloadOptimizer, which has torchao's signature, with torch's AdamW in it."""
    return _offload(lambda: imported("octavo.optim").CPUOffloadOptimizer, options)


def _offload(import_class: Callable[[], Any], options: dict[str, Any]) -> Make:
    return lambda params, lr: import_class()(params, torch.optim.AdamW, lr=lr, fused=True, **options)
