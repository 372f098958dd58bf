"""Chooses the implementation of attention that torch would choose on the planned GPU. Flash attention and
efficient attention store no scores. The plain implementation, which fake tensors would get, stores all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from ._core import Gpu

_plain = functional.scaled_dot_product_attention
_FLASH_WIDTH = 256


def _attend(
    gpu: Gpu,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    q, k, v = _cast(query, key, value)
    flash = torch.backends.cuda.flash_sdp_enabled() and _flash_supports(gpu, q, k, v, attn_mask)
    shared = q.dim() == 4 and q.shape[1] != k.shape[1]
    if flash and (not shared or enable_gqa):
        width = q.shape[-1]
        scale = width**-0.5 if scale is None else scale
        if width % 8:
            q, k, v = (functional.pad(t, (0, 8 - width % 8)) for t in (q, k, v))
        made = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal, scale=scale)
        result: Tensor = made[0][..., :width]
        return result
    if torch.backends.cuda.mem_efficient_sdp_enabled() and not shared and _efficient_supports(q, k, v):
        saved = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
        bias = None if attn_mask is None else _bias(attn_mask, q, k)
        result = torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, bias, saved, dropout_p, is_causal, scale=scale
        )[0]
        return result
    more: dict[str, Any] = {"enable_gqa": True} if enable_gqa else {}
    result = _plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **more)
    return result


def _cast(*tensors: Tensor) -> list[Tensor]:
    """Converts dtypes as autocast does, which is before the choice."""
    if not torch.is_autocast_enabled("cuda") or not all(t.is_floating_point() for t in tensors):
        return list(tensors)
    return [t.to(torch.get_autocast_dtype("cuda")) for t in tensors]


def _flash_supports(gpu: Gpu, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> bool:
    return (
        mask is None
        and gpu.capability[0] >= 8
        and q.dtype in (torch.float16, torch.bfloat16)
        and q.dim() == k.dim() == v.dim() == 4
        and q.shape[-1] == k.shape[-1] == v.shape[-1] <= _FLASH_WIDTH
        and q.shape[0] == k.shape[0] == v.shape[0]
    )


def _efficient_supports(q: Tensor, k: Tensor, v: Tensor) -> bool:
    aligned = 16 // q.element_size()
    return (
        q.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and q.dim() == k.dim() == v.dim() == 4
        and q.shape[:2] == k.shape[:2] == v.shape[:2]
        and q.shape[-1] % aligned == 0
        and v.shape[-1] % aligned == 0
    )


def _bias(mask: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Returns the term that is added to the scores, in rows that are aligned to 16 bytes."""
    if mask.dtype == torch.bool:
        mask = torch.where(mask, 0.0, float("-inf")).to(q.dtype)
    mask = mask.to(q.dtype)
    if rest := mask.shape[-1] % 16:
        mask = functional.pad(mask, (0, 16 - rest))[..., : k.shape[-2]]
    return mask.expand(*q.shape[:2], q.shape[2], k.shape[2])


class _Chosen(TorchFunctionMode):
    """Replaces torch's function in code that has imported it under another name."""

    def __init__(self, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self._attend = attend

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (self._attend if func is _plain else func)(*args, **(kwargs or {}))


@contextlib.contextmanager
def choose_attention(gpu: Gpu) -> Iterator[None]:
    def attend(*args: Any, **kwargs: Any) -> Tensor:
        return _attend(gpu, *args, **kwargs)

    # torch's own functions call it by its name, without the mode.
    with mock.patch.object(functional, "scaled_dot_product_attention", attend), _Chosen(attend):
        yield
