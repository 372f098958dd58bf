"""The kernels of an aten operator: matrix products with their sizes, everything else by the bytes it reads
and writes. Views are nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ._core import BF16, FP8, FP16, FP32, PRODUCT, TF32, Kernel

aten = torch.ops.aten
_FUSED_TENSORS = 36  # of one launch of a fused or foreach kernel, about
Found = tuple[list[Kernel], int]  # kernels, and bytes of scratch memory that they take and give back
Get = Callable[[str], Any]  # an argument by its name
_Of = Callable[[Get, Any], Found]
_PRODUCTS: dict[Any, _Of] = {}


def by_cublas(func: Any) -> bool:
    return func.overloadpacket in _CUBLAS


def of(func: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any, new: Sequence[Tensor]) -> Found:
    """The kernels of a call; `new` are those of its results that have memory of their own."""
    if found := _PRODUCTS.get(func.overloadpacket):
        return found(lambda name: _argument(func, args, kwargs, name), out)
    written = _written(func)
    if not written and not new:
        return [], 0  # a view, or a question
    name = func.overloadpacket.__name__
    if name.startswith(("empty", "new_empty", "lift_fresh")):
        return [], 0
    changed = [t for at in written for t in _given(func, args, kwargs, at)]
    outputs = sum(map(size_of, new)) + sum(map(size_of, changed))
    if name in _WRITE_ONLY:
        read = 0.0
    elif name in _GATHER:
        read = outputs  # of a table only the rows that are asked for
    else:
        read = sum(map(size_of, _distinct([args, kwargs])))
        if name in ("copy_", "copy"):
            read -= sum(map(size_of, changed))
    many = name.startswith(("_foreach", "_fused", "_amp_foreach"))
    launches = math.ceil(max(len(changed), len(new), 1) / _FUSED_TENSORS) if many else 1
    return [Kernel(bytes=read + outputs, launches=launches)], 0


_WRITE_ONLY = {
    *("zero_", "fill_", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "arange"),
    *("normal_", "uniform_", "bernoulli_", "random_", "new_zeros", "new_ones", "new_full", "rand"),
    *("rand_like", "randn", "randn_like", "scalar_tensor"),
}
_GATHER = {"embedding", "index", "index_select", "gather"}


@functools.cache
def _written(func: Any) -> tuple[tuple[int, str], ...]:
    """Places and names of the arguments that the operator writes."""
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def _given(func: Any, args: Sequence[Any], kwargs: dict[str, Any], at: tuple[int, str]) -> Iterator[Tensor]:
    place, name = at
    return _all(args[place] if place < len(args) else kwargs.get(name))


def _all(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _all(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _all(each)


def _distinct(value: Any) -> Iterator[Tensor]:
    return iter({id(t): t for t in _all(value)}.values())


def size_of(tensor: Tensor) -> float:
    """Bytes of its elements; those of an expanded dimension once."""
    count = math.prod(n for n, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride or n == 0)
    return float(count * tensor.element_size())


# --- Products ---------------------------------------------------------------------------------------


def _precision(dtype: torch.dtype, convolution: bool = False) -> int:
    if dtype == torch.float32:
        backend = torch.backends.cudnn if convolution else torch.backends.cuda.matmul
        return TF32 if backend.allow_tf32 else FP32
    if dtype.itemsize == 1 and dtype.is_floating_point:
        return FP8
    return {torch.bfloat16: BF16, torch.float16: FP16}.get(dtype, FP32)


def _product(batch: int, rows: int, columns: int, inner: int, dtype: torch.dtype, **more: Any) -> Kernel:
    moved = batch * (rows * inner + inner * columns + rows * columns) * dtype.itemsize
    return Kernel(float(moved), PRODUCT, _precision(dtype, **more), batch, rows, columns, inner)


def _register(*packets: str) -> Callable[[_Of], _Of]:
    def add(function: _Of) -> _Of:
        for name in packets:
            if hasattr(aten, name):  # some are younger than the oldest torch here
                _PRODUCTS[getattr(aten, name)] = function
        return function

    return add


def _argument(func: Any, args: Sequence[Any], kwargs: dict[str, Any], name: str) -> Any:
    for place, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[place] if place < len(args) else kwargs.get(name, argument.default_value)
    raise KeyError(name)


def _mm(a: Tensor, b: Tensor) -> Found:
    batch = a.shape[0] if a.dim() == 3 else 1
    return [_product(batch, a.shape[-2], b.shape[-1], a.shape[-1], a.dtype)], 0


@_register("mm")
def _plain(get: Get, out: Any) -> Found:
    return _mm(get("self"), get("mat2"))


@_register("bmm")
def _batched(get: Get, out: Any) -> Found:
    return _mm(get("self"), get("mat2"))


@_register("_scaled_mm")
def _scaled(get: Get, out: Any) -> Found:
    return _mm(get("self"), get("mat2"))


@_register("addmm", "addmm_", "_addmm_activation")
def _added(get: Get, out: Any) -> Found:
    return _mm(get("mat1"), get("mat2"))


@_register("baddbmm", "baddbmm_")
def _batched_added(get: Get, out: Any) -> Found:
    return _mm(get("batch1"), get("batch2"))


def _convolution(x: Tensor, weight: Tensor, y_shape: Sequence[int], transposed: bool, groups: int) -> Kernel:
    """As a product of the patches with the weight, for each group."""
    positions = (x.shape if transposed else y_shape)[2:]
    inner, outer = math.prod(weight.shape[1:]), weight.shape[0] // groups
    rows = x.shape[0] * math.prod(positions)
    kernel = _product(groups, rows, outer, inner, x.dtype, convolution=True)
    # Patches overlap, and are read once.
    kernel.bytes = size_of(x) + size_of(weight) + x.element_size() * float(math.prod(y_shape))
    return kernel


@_register("convolution", "_convolution")
def _convolution_forward(get: Get, out: Any) -> Found:
    x, weight, transposed, groups = (get(name) for name in ("input", "weight", "transposed", "groups"))
    return [_convolution(x, weight, out.shape, transposed, groups)], 0


@_register("convolution_backward")
def _convolution_backward(get: Get, out: Any) -> Found:
    x, weight, transposed, groups = (get(name) for name in ("input", "weight", "transposed", "groups"))
    grad, mask = get("grad_output"), get("output_mask")
    made = [_convolution(x, weight, grad.shape, transposed, groups) for wanted in mask[:2] if wanted]
    return made + [Kernel(bytes=size_of(grad)) for wanted in mask[2:] if wanted], 0


def _attention(get: Get, products: int) -> Kernel:
    """All products of an attention as one; scores stay on the chip."""
    q, k, v = get("query"), get("key"), get("value")
    keys = max(1, k.shape[2] // 2) if get("is_causal") else k.shape[2]
    inner = (q.shape[-1] + v.shape[-1]) // 2 * products
    kernel = _product(q.shape[0] * q.shape[1], q.shape[2], keys, inner, q.dtype)
    kernel.bytes = (size_of(q) * 2 + size_of(k) + size_of(v)) * products / 2
    return kernel


@_register(*(f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn")))
def _attention_forward(get: Get, out: Any) -> Found:
    return [_attention(get, 2)], 0


@_register(*(f"_scaled_dot_product_{kind}_attention_backward" for kind in ("flash", "cudnn")))
def _flash_backward(get: Get, out: Any) -> Found:
    # dq adds up in fp32, in rows of whole blocks; beside it a sum per row.
    batch, heads, length, width = get("query").shape
    scratch = batch * heads * _up(length, 128) * (_up(width, 32) + 1) * 4
    return [_attention(get, 5)], scratch


@_register("_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(get: Get, out: Any) -> Found:
    query = get("query")
    batch, heads, length, width = query.shape
    sums = 1 + (width if query.dtype != torch.float32 else 0)
    return [_attention(get, 5)], batch * heads * _up(length, 32) * sums * 4


def _up(value: int, to: int) -> int:
    return -(-value // to) * to


_CUBLAS = {packet for packet, found in _PRODUCTS.items() if "mm" in packet.__name__}
