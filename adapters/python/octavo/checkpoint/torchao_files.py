"""Reads torchao's optimizer checkpoints with torch.load(weights_only=True), with or without torchao.

torchao pickles a state as a tensor of its own class with `codes`, `scale` and `qmap` as attributes, and
weights_only accepts only registered classes. If torchao is not installed, stand-ins with the same names
have these attributes and no other behaviour.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten
_COPIES = (_aten.detach.default, _aten.clone.default, _aten._to_copy.default)
# The classes moved out of torchao.prototype in 0.9. A file has the path of the version that wrote it.
_PACKAGES = ("torchao.optim", "torchao.prototype.low_bit_optim")


class _StandIn(Tensor):
    """A wrapper without memory. It can be copied and moved, as a load does, and has no values."""

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in _COPIES:
            raise NotImplementedError(
                f"{func} on a torchao state that was loaded without torchao: give the checkpoint to "
                "load_state_dict of an octavo optimizer, or install torchao"
            )
        source, options = args[0], dict(kwargs or {})
        dtype = options.pop("dtype", None) or source.dtype  # codes and scales keep their dtypes
        device = options.get("device") or source.device
        out = Tensor._make_wrapper_subclass(type(source), source.shape, dtype=dtype, device=device)
        for name, value in vars(source).items():
            setattr(out, name, func(value, **options) if isinstance(value, Tensor) else value)
        return out

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"{type(self).__name__}(shape={tuple(self.shape)}, loaded without torchao)"


class OptimState8bit(_StandIn): ...


class OptimState4bit(_StandIn): ...


class OptimStateFp8(_StandIn): ...


_STAND_INS = {
    f"subclass_{kind.__name__[10:].lower()}.{kind.__name__}": kind
    for kind in (OptimState8bit, OptimState4bit, OptimStateFp8)
}


def _classes() -> dict[str, type[Tensor]]:
    """Returns torchao's classes if it is installed, else the stand-ins."""
    for package in _PACKAGES:
        try:
            return {
                path: getattr(importlib.import_module(f"{package}.{path.split('.')[0]}"), stand_in.__name__)
                for path, stand_in in _STAND_INS.items()
            }
        except ImportError:
            continue
    return dict(_STAND_INS)


@contextlib.contextmanager
def torchao_classes() -> Iterator[None]:
    """Inside, torch.load with weights_only=True reads optimizer checkpoints of torchao:

    with octavo.checkpoint.torchao_classes():
        saved = torch.load("optimizer.pt", weights_only=True, map_location="cpu")
    optimizer.load_state_dict(saved)
    """
    paths = [(kind, f"{package}.{path}") for path, kind in _classes().items() for package in _PACKAGES]
    known: list[Any] = paths
    if torch.__version__.startswith("2.5."):  # it derives the paths from the classes
        known = [_at(kind, path) for kind, path in paths]
    with torch.serialization.safe_globals(known):
        yield


def _at(kind: type[Tensor], path: str) -> type[Tensor]:
    """Returns a class like `kind` whose module and name are those of `path`."""
    module, _, name = path.rpartition(".")
    return kind if kind.__module__ == module else type(name, (kind,), {"__module__": module})
