"""torchao's quantized states: OptimState8bit, OptimState4bit and OptimStateFp8.

Each is a wrapper tensor with `codes`, `scale` (one for every codes.numel() / scale.numel() elements) and,
except for FP8, `qmap`, the map of its codes. torchao computes the map at run time, so values differ by 1 or 2
ulp where torch's linspace uses no FMA. A new state has code 0 and scale 0, which is zero in both libraries.
The wrapper's dtype has no meaning. The name of the class identifies it, so torchao need not be installed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    same_map = state == "fp8" or is_our_map(qmap, moment, state)  # FP8 scales are absmax/448 in both
    if same_map and is_our_block(block_size):
        return SavedMoment(moment, shape, state, block_size, codes, scales)
    flat = codes.view(torch.uint8).view(-1)
    decoder = map_decoder(flat, scales, block_size, qmap, nibbles=state == "4bit")
    return SavedMoment(moment, shape, "", block_size, None, None, decoder)


_E4M3 = torch.arange(256, dtype=torch.uint8, device="cpu").view(torch.float8_e4m3fn).float()


def _check(name: str, state: str, codes: Tensor, scales: Tensor, numel: int) -> int:
    """Returns the block size. ValueError if codes and scales do not match."""
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


def is_offloaded(state_dict: Mapping[str, Any]) -> bool:
    """Returns True for a state dict of torchao's CPUOffloadOptimizer."""
    return "offloaded" in state_dict and "param_groups" not in state_dict


def join_offloaded(state_dict: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns a state dict of torchao's CPUOffloadOptimizer in the form of torch.optim, for these groups.

    The file has one state dict for each parameter that was stepped on the CPU, in the order of the
    parameters, and one for all parameters below `minimal_size`. It does not have the limit. It follows from
    the counts, because the parameters on the CPU are the largest ones. Frozen parameters are in neither part.
    """
    away, rest = state_dict["offloaded"], state_dict.get("on-device") or {"state": {}, "param_groups": []}
    trained = [param for group in groups for param in group["params"] if param.requires_grad]
    small = [number for group in rest["param_groups"] for number in group["params"]]
    limit = sorted((param.numel() for param in trained), reverse=True)[: len(away)][-1] if away else math.inf
    large = sum(param.numel() >= limit for param in trained)
    if (large, len(trained) - large) != (len(away), len(small)):
        raise ValueError(
            f"loaded state dict of torchao's CPUOffloadOptimizer has {len(away)} parameters on the CPU and "
            f"{len(small)} on the device, expected {len(trained)} in all, the largest on the CPU"
        )
    options = {number: group for group in rest["param_groups"] for number in group["params"]}
    big = iter((saved["state"].get(0), saved["param_groups"][0]) for saved in away)
    little = iter((rest["state"].get(number), options[number]) for number in small)
    states: dict[int, Any] = {}
    merged, count = [], 0
    for group in groups:
        saved_group: Mapping[str, Any] = group  # for a group whose parameters are all frozen
        numbers = range(count, count := count + len(group["params"]))
        for number, param in zip(numbers, group["params"], strict=True):
            if param.requires_grad:
                states[number], saved_group = next(big if param.numel() >= limit else little)
        merged.append({**saved_group, "params": list(numbers)})
    return {"state": states, "param_groups": merged}
