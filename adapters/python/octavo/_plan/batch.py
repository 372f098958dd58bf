"""Makes fake tensors for the inputs, which are given as tensors or shapes, and for the model."""

from __future__ import annotations

import copy
import numbers
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

_INTEGERS = re.compile(r"(ids|mask|labels|tokens|targets)$")


def is_shape(value: Any) -> bool:
    return (
        isinstance(value, (tuple, list))
        and len(value) > 0
        and all(isinstance(n, numbers.Integral) and not isinstance(n, bool) for n in value)
    )


def _is_typed_shape(value: Any) -> bool:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return False
    shape, dtype = value
    return (is_shape(shape) or shape in ((), [])) and isinstance(dtype, torch.dtype)


class Inputs:
    """Makes fake inputs. `floating` is the dtype of inputs that are given as shapes, `cast` of floating
    tensors. `first` replaces first dimensions, for fewer samples.
    """

    def __init__(
        self,
        device: torch.device,
        floating: torch.dtype,
        cast: torch.dtype | None,
        first: Mapping[int, int] | None = None,
    ) -> None:
        self._device, self._floating, self._cast = device, floating, cast
        self._first = {} if first is None else first

    def make(self, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the positional and named arguments of the model."""
        if batch is None:
            return (), {}
        if isinstance(batch, Mapping):
            return (), {name: self._one(value, str(name)) for name, value in batch.items()}
        if isinstance(batch, Tensor) or is_shape(batch) or _is_typed_shape(batch):
            return (self._one(batch, ""),), {}
        if isinstance(batch, (tuple, list)):
            return tuple(self._one(value, "") for value in batch), {}
        raise TypeError(
            f"plan: batch has the type {type(batch).__name__}, expected a tensor, a shape, a (shape, dtype), "
            "or a tuple or dict of these"
        )

    def _one(self, value: Any, name: str) -> Any:
        if isinstance(value, Tensor):
            dtype = self._cast if self._cast is not None and value.is_floating_point() else value.dtype
            return self._empty(tuple(value.shape), dtype)
        if _is_typed_shape(value):
            return self._empty(*value)
        if is_shape(value):
            return self._empty(value, torch.int64 if _INTEGERS.search(name) else self._floating)
        return value

    def _empty(self, shape: Any, dtype: torch.dtype) -> Tensor:
        sizes = tuple(int(n) for n in shape)
        if any(n < 0 for n in sizes):
            raise ValueError(f"plan: batch: got the shape {sizes}, expected dimensions of 0 or more")
        if sizes:
            sizes = (self._first.get(sizes[0], sizes[0]), *sizes[1:])
        return torch.empty(sizes, dtype=dtype, device=self._device)


def samples_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Returns the first dimension of the first tensor."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return int(value.shape[0]) if value.dim() else 1
    return 1


class _Copies(TorchFunctionMode):
    """Copies tensors that are neither parameters nor buffers without their memory, on their devices."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__deepcopy__:
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = _like(tensor, tensor.device, tensor.dtype)
            return memo[id(tensor)]
        return func(*args, **(kwargs or {}))


def _like(tensor: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=device)
    return made.requires_grad_(tensor.requires_grad) if tensor.is_leaf else made


def fake_model(
    model: nn.Module, device: torch.device, dtype: torch.dtype | None
) -> tuple[nn.Module, dict[int, Tensor]]:
    """Returns a copy of the model with fake parameters and buffers on the device, and these by the ids of the
    model's. A forward pass may store something in its modules, so the model itself is not used.
    """
    memo: dict[int, Any] = {}
    fakes: dict[int, Tensor] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if isinstance(tensor, nn.parameter.UninitializedTensorMixin):
            raise ValueError(f"plan: {name} has no shape yet; run the lazy model once, on the CPU")
        if tensor.layout != torch.strided:
            raise ValueError(f"plan: {name} is {tensor.layout}, expected dense parameters")
        to = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=to, device=device)
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made, tensor.requires_grad)
        made.__dict__.update({key: value for key, value in vars(tensor).items() if key not in vars(made)})
        memo[id(tensor)] = fakes[id(tensor)] = made
    with _Copies():
        return copy.deepcopy(model, memo), fakes
