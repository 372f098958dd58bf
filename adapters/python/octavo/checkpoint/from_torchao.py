"""torchao's quantized states: OptimState8bit, OptimState4bit and OptimStateFp8.

Each is a wrapper tensor with `codes`, `scale` (one for every codes.numel() / scale.numel() elements) and,
but for FP8, the map `qmap` it was encoded with: built at run time, and 1-2 ulp off in places where torch's
linspace does not use FMA. A fresh state has code 0 and scale 0, which is zero there and here. The wrapper's
dtype is for show. Recognised by the name of the class, so that torchao need not be installed.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._shards import local
from .decoding import check_shape, is_our_block, is_our_map, map_decoder
from .saved import SavedMoment, known_moments

CLASSES = {"OptimState8bit": "8bit", "OptimState4bit": "4bit", "OptimStateFp8": "fp8"}


def is_torchao(value: Any) -> bool:
    return isinstance(value, Tensor) and type(value).__name__ in CLASSES


def torchao_moment(name: str, value: Any, shape: tuple[int, ...]) -> SavedMoment:
    state, moment = CLASSES[type(value).__name__], known_moments()[name]
    check_shape(name, value, shape)
    codes, scales = local(value.codes).detach().contiguous(), local(value.scale).detach().view(-1)
    block_size = _check(name, state, codes, scales, math.prod(shape))
    scales = scales.to(torch.float32)
    qmap = _E4M3 if state == "fp8" else _qmap(name, value, state)
    same_map = state == "fp8" or is_our_map(qmap, moment, state)  # an FP8 scale is absmax/448 on both sides
    if same_map and is_our_block(block_size):
        return SavedMoment(moment, shape, state, block_size, codes, scales)
    flat = codes.view(torch.uint8).view(-1)
    decoder = map_decoder(flat, scales, block_size, qmap, nibbles=state == "4bit")
    return SavedMoment(moment, shape, "", block_size, None, None, decoder)


_E4M3 = torch.arange(256, dtype=torch.uint8, device="cpu").view(torch.float8_e4m3fn).float()


def _check(name: str, state: str, codes: Tensor, scales: Tensor, numel: int) -> int:
    """The block size, when codes and scales fit."""
    dtype = torch.float8_e4m3fn if state == "fp8" else torch.uint8
    if codes.dtype != dtype or not scales.dtype.is_floating_point:
        raise ValueError(
            f"{name} has codes of {codes.dtype} and scales of {scales.dtype}, expected {dtype} "
            "and torch.float32"
        )
    expected = numel // 2 if state == "4bit" else numel
    blocks = scales.numel()
    if codes.numel() != expected or blocks == 0 or numel % blocks:
        raise ValueError(
            f"{name} has {codes.numel()} codes and {blocks} scales, expected {expected} codes and "
            f"scales that divide {numel} elements evenly"
        )
    return numel // blocks


def _qmap(name: str, value: Any, state: str) -> Tensor:
    qmap = local(value.qmap)
    entries = 16 if state == "4bit" else 256
    if qmap.numel() != entries:
        raise ValueError(f"{name} has a qmap of {qmap.numel()} entries, expected {entries}")
    if bool(value.signed) is not (known_moments()[name] == "first"):
        raise ValueError(f"{name} is a torchao state with signed={value.signed}, expected {not value.signed}")
    return qmap
