"""The kernels of an aten operator: matmuls with their sizes, everything else by the bytes that it reads and
writes. Views have no kernel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ._core import BF16, FP8, FP16, FP32, MATMUL, TF32, kernel

aten = torch.ops.aten
_FUSED_TENSORS = 36  # of one launch of a fused or foreach kernel, approximately
Found = tuple[list[Any], int]  # kernels, and the bytes of their temporary memory
Get = Callable[[str], Any]  # returns an argument by its name
_Matmuls = Callable[[Get, Any], Found]
_MATMULS: dict[Any, _Matmuls] = {}


def by_cublas(func: Any) -> bool:
    return func.overloadpacket in _MATMULS and "mm" in func.overloadpacket.__name__


def kernels_of(
    func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any, new: Sequence[Tensor]
) -> Found:
    """Returns the kernels of a call; `new` are its results that have their own memory."""
    if found := _MATMULS.get(func.overloadpacket):
        return found(lambda name: _argument(func, args, kwargs, name), out)
    written = _written(func)
    name = func.overloadpacket.__name__
    if not (written or new) or name.startswith(("empty", "new_empty", "lift_fresh")):
        return [], 0  # a view, a query, or memory without values
    given = (args[place] if place < len(args) else kwargs.get(key) for place, key in written)
    changed = list(tensors_in(list(given)))
    outputs = sum(map(size_of, new)) + sum(map(size_of, changed))
    if name in _WRITE_ONLY:
        read = 0.0
    elif name in _GATHER:
        read = outputs  # only the rows that are selected
    else:
        read = sum(map(size_of, {id(t): t for t in tensors_in([args, kwargs])}.values()))
        if name in ("copy_", "copy"):
            read -= sum(map(size_of, changed))
    many = name.startswith(("_foreach", "_fused", "_amp_foreach"))
    launches = math.ceil(max(len(changed), len(new), 1) / _FUSED_TENSORS) if many else 1
    return [kernel(read + outputs, launches)], 0


_WRITE_ONLY = {
    *("zero_", "fill_", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "arange"),
    *("normal_", "uniform_", "bernoulli_", "random_", "new_zeros", "new_ones", "new_full", "rand"),
    *("rand_like", "randn", "randn_like", "scalar_tensor"),
}
_GATHER = {"embedding", "index", "index_select", "gather"}


@functools.cache
def _written(func: Any) -> tuple[tuple[int, str], ...]:
    """Returns positions and names of the arguments that the operator writes."""
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(each)


def size_of(tensor: Tensor) -> float:
    """Returns the bytes of its elements; those of an expanded dimension count once."""
    count = math.prod(n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or n == 0)
    return float(count * tensor.element_size())


# --- Matmuls --------------------------------------------------------------------------------------


def _precision(dtype: torch.dtype, convolution: bool) -> int:
    if dtype == torch.float32:
        backend = torch.backends.cudnn if convolution else torch.backends.cuda.matmul
        return TF32 if backend.allow_tf32 else FP32
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return FP8
    return {torch.bfloat16: BF16, torch.float16: FP16}.get(dtype, FP32)


def _matmul(
    batch: int, rows: int, columns: int, inner: int, dtype: torch.dtype, convolution: bool = False
) -> Any:
    moved = batch * (rows * inner + inner * columns + rows * columns) * dtype.itemsize
    sizes = {"batch": batch, "rows": rows, "columns": columns, "inner": inner}
    return kernel(float(moved), work=MATMUL, precision=_precision(dtype, convolution), **sizes)


def _register(*packets: str) -> Callable[[_Matmuls], _Matmuls]:
    def add(function: _Matmuls) -> _Matmuls:
        # The oldest supported torch lacks some of them.
        _MATMULS.update({getattr(aten, name): function for name in packets if hasattr(aten, name)})
        return function

    return add


def _argument(func: Any, args: Sequence[Any], kwargs: dict[str, Any], name: str) -> Any:
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[place] if place < len(args) else kwargs.get(name, argument.default_value)
    raise KeyError(name)


def _register_matmul(first: str, second: str, *packets: str) -> None:
    """Registers operators that multiply the arguments of these names."""

    def found(get: Get, _: Any) -> Found:
        a, b = get(first), get(second)
        batch = a.shape[0] if a.dim() == 3 else 1
        return [_matmul(batch, a.shape[-2], b.shape[-1], a.shape[-1], a.dtype)], 0

    _register(*packets)(found)


_register_matmul("self", "mat2", "mm", "bmm", "_scaled_mm")
_register_matmul("mat1", "mat2", "addmm", "addmm_", "_addmm_activation")
_register_matmul("batch1", "batch2", "baddbmm", "baddbmm_")


def _convolution(get: Get, y_shape: Sequence[int]) -> Any:
    """Returns, for each group, the matmul of the patches with the weight."""
    x, weight, transposed, groups = (get(name) for name in ("input", "weight", "transposed", "groups"))
    positions = (x.shape if transposed else y_shape)[2:]
    inner, outer = math.prod(weight.shape[1:]), weight.shape[0] // groups
    found = _matmul(groups, x.shape[0] * math.prod(positions), outer, inner, x.dtype, convolution=True)
    # Patches overlap, and each element is read once.
    found.bytes = size_of(x) + size_of(weight) + x.element_size() * float(math.prod(y_shape))
    return found


@_register("convolution", "_convolution")
def _convolution_forward(get: Get, out: Any) -> Found:
    return [_convolution(get, out.shape)], 0


@_register("convolution_backward")
def _convolution_backward(get: Get, _: Any) -> Found:
    grad, mask = get("grad_output"), get("output_mask")
    made = [_convolution(get, grad.shape) for wanted in mask[:2] if wanted]
    return made + [kernel(size_of(grad)) for wanted in mask[2:] if wanted], 0


def _attention(get: Get, matmuls: int) -> Any:
    """Returns all matmuls of an attention as one; scores are never in memory."""
    q, k, v = get("query"), get("key"), get("value")
    keys = max(1, k.shape[2] // 2) if get("is_causal") else k.shape[2]
    inner = (q.shape[-1] + v.shape[-1]) // 2 * matmuls
    found = _matmul(q.shape[0] * q.shape[1], q.shape[2], keys, inner, q.dtype)
    found.bytes = (size_of(q) * 2 + size_of(k) + size_of(v)) * matmuls / 2
    return found


@_register(*(f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn")))
def _attention_forward(get: Get, _: Any) -> Found:
    return [_attention(get, 2)], 0


@_register(*(f"_scaled_dot_product_{kind}_attention_backward" for kind in ("flash", "cudnn")))
def _flash_backward(get: Get, _: Any) -> Found:
    # dq accumulates in fp32 in padded rows, and each row has a sum.
    batch, heads, length, width = get("query").shape
    return [_attention(get, 5)], batch * heads * _up(length, 128) * (_up(width, 32) + 1) * 4


@_register("_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(get: Get, _: Any) -> Found:
    batch, heads, length, width = get("query").shape
    sums = 1 + (width if get("query").dtype != torch.float32 else 0)
    return [_attention(get, 5)], batch * heads * _up(length, 32) * sums * 4


def _up(value: int, to: int) -> int:
    return -(-value // to) * to
