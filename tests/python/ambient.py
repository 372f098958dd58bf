"""Torch's and the process's defaults as another program may have set them, for a second run of the tests.

OCTAVO_TEST_DEFAULTS is a list like "bfloat16,meta,threads=3,bound". A dtype becomes torch's default for all
of a run. A device is the default inside the package only (its import and its public calls): the tests make
their own tensors with torch's functions. `threads` is torch's number of threads; `bound` ties the main thread
to one core, as OMP_PROC_BIND does, before the library starts its own.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

DTYPES = ("bfloat16", "float16", "float64")
DEVICES = ("meta", "cuda")
KNOWN = ", ".join([*DTYPES, *DEVICES, "threads=N", "bound"])
# The methods that users call and that make tensors. It is `_step_all` and not `step`, because a closure is
# the caller's code.
_METHODS = (
    "_step_all",
    "state_dict",
    "load_state_dict",
    "portable_state_dict",
    "master_parameters",
    "reset_state",
    "__init__",
    "__setstate__",
)


def asked() -> list[str]:
    return [word for word in os.environ.get("OCTAVO_TEST_DEFAULTS", "").split(",") if word]


def bind_main_thread() -> None:
    """Before torch or the library is loaded."""
    if "bound" in asked():
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def set_defaults() -> None:
    """For the rest of the process. An unknown word is an error: such a run would change nothing and pass."""
    import torch

    threads = (
        1  # tensors here are small: on a busy machine torch's threads would wait longer than they compute
    )
    for word in asked():
        if word in DTYPES:
            torch.set_default_dtype(getattr(torch, word))
        elif word in DEVICES:
            _inside_package(word)
        elif word.startswith("threads="):
            threads = int(word.removeprefix("threads="))
        elif word != "bound":
            raise ValueError(f"OCTAVO_TEST_DEFAULTS: got {word!r}, expected one of {KNOWN}")
    torch.set_num_threads(threads)


def _inside_package(device: str) -> None:
    import torch

    with torch.device(device):
        from octavo import _codec
        from octavo.checkpoint import importers, native
        from octavo.optim.optimizer import Optimizer

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with torch.device(device):
                return function(*args, **kwargs)

        return inside

    for name in _METHODS:
        setattr(Optimizer, name, wrapped(getattr(Optimizer, name)))
    for module, names in ((_codec, ("encode", "decode")), (importers, ("read_peer_state",))):
        for name in names:
            setattr(module, name, wrapped(getattr(module, name)))
    native.read_peer_state = importers.read_peer_state
