"""State dict entries of other libraries, built by hand from their documented layout, and what they decode to.

The maps come from the formula of docs/formats.md and every expected value is computed here with numpy, so
that the importers are tested where none of the libraries is installed.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import torch
from torch import Tensor

f32 = np.float32
NESTED = "__bnb_optimizer_quant_state__"


def _decade(d: int, power: float) -> list[Any]:
    n = 2**d
    s = float(f32(1) - f32(0.1)) / n
    edge = [f32(s * i + float(f32(0.1))) if i < (n + 1) // 2 else f32(1 - s * (n - i)) for i in range(n + 1)]
    return [f32(power) * ((edge[j] + edge[j + 1]) / f32(2)) for j in range(n)]


def _signed(decades: int) -> list[Any]:
    rising = [x for d in range(decades) for x in _decade(d, 10.0 ** (d - decades + 1))]
    return [-x for x in reversed(rising)] + [f32(0)] + rising + [f32(1)]


_UNSIGNED8 = [f32(0)] + [x for d in range(1, 8) for x in _decade(d, 10.0 ** (d - 7))] + [f32(1)]
MAPS = {
    ("8bit", True): torch.from_numpy(np.array(_signed(7), f32)),
    ("8bit", False): torch.from_numpy(np.array(_UNSIGNED8, f32)),
    ("4bit", True): torch.from_numpy(np.array(_signed(3), f32)),
    ("4bit", False): torch.from_numpy(np.array([(code + 1) / 16 for code in range(16)], f32)),
}
CLASS_NAMES = {"8bit": "OptimState8bit", "4bit": "OptimState4bit", "fp8": "OptimStateFp8"}


def bits(values: Tensor) -> Tensor:
    return values.detach().cpu().contiguous().view(torch.int32)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype == torch.float32 and torch.equal(bits(a), bits(b))


def random_scales(blocks: int, seed: int) -> Tensor:
    """Over many magnitudes, with a 0 (a fresh block), torchao's floor and a subnormal."""
    generator = torch.Generator().manual_seed(seed)
    scales = 10.0 ** (torch.rand(blocks, generator=generator, dtype=torch.float32) * 12 - 10)
    for index, special in enumerate((0.0, 1e-12, 1e-41)[: max(0, blocks - 1)]):
        scales[index] = special
    return scales


def random_bytes(count: int, seed: int) -> Tensor:
    """Every byte is among them from 256 on."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
    codes[:256] = torch.arange(256, dtype=torch.uint8)[: codes.numel()]
    return codes


def expected(codes: Tensor, scales: Tensor, block_size: int, table: Tensor, shape: tuple[int, ...]) -> Tensor:
    """fl(table[code] * scale), with numpy, element by element."""
    flat = codes.reshape(-1).numpy().astype(np.int64)
    spread = scales.float().numpy()[np.arange(flat.size) // block_size]
    return torch.from_numpy(table.numpy()[flat] * spread).reshape(shape)


def unpack(codes: Tensor) -> Tensor:
    packed = codes.numpy()
    return torch.from_numpy(np.stack([packed // 16, packed % 16], axis=1).reshape(-1))


class _Wrapper(Tensor):
    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"no values: {func}")


def torchao_class(state: str) -> type[Tensor]:
    """A class with torchao's name and nothing else of it."""
    return types.new_class(CLASS_NAMES[state], (_Wrapper,))


def torchao_state(state: str, shape: tuple[int, ...], parts: dict[str, Any], kind: Any = None) -> Tensor:
    """A wrapper tensor as torchao pickles it: no storage, the parts as attributes."""
    wrapper = Tensor._make_wrapper_subclass(kind or torchao_class(state), shape, dtype=torch.bfloat16)
    for name, value in parts.items():
        setattr(wrapper, name, value)
    return wrapper


def torchao_parts(
    state: str, signed: bool, shape: tuple[int, ...], block_size: int, seed: int = 0
) -> tuple[dict[str, Any], Tensor]:
    """The attributes of a torchao state, and its values."""
    numel = int(np.prod(shape))
    scales = random_scales(numel // block_size, seed)
    codes = random_bytes(numel // 2 if state == "4bit" else numel, seed + 1)
    if state == "fp8":
        codes[codes & 127 == 127] = 0  # NaN, which no encoder writes
        codes = codes.view(torch.float8_e4m3fn).reshape(shape)
        table = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
        values = expected(codes.view(torch.uint8), scales, block_size, table, shape)
        return {"codes": codes, "scale": scales, "block_size": block_size}, values
    qmap = MAPS[state, signed].clone()
    parts = {"codes": codes, "scale": scales, "qmap": qmap, "signed": signed, "block_size": block_size}
    if state == "4bit":
        return {**parts, "_shape": shape}, expected(unpack(codes), scales, block_size, qmap, shape)
    parts["codes"] = codes.reshape(shape)
    return parts, expected(codes, scales, block_size, qmap, shape)


def bitsandbytes_parts(
    slot: int, shape: tuple[int, ...], block_size: int, seed: int = 0
) -> tuple[dict[str, Tensor], Tensor]:
    """stateN, absmaxN and qmapN of an 8-bit state, and its values."""
    numel = int(np.prod(shape))
    scales = random_scales(-(-numel // block_size), seed)
    codes, qmap = random_bytes(numel, seed + 1), MAPS["8bit", slot == 1].clone()
    codes[: min(block_size, 4)] = 255  # the first block has absmax 0: CUDA's codes of zero
    parts = {f"state{slot}": codes.reshape(shape), f"absmax{slot}": scales, f"qmap{slot}": qmap}
    return parts, expected(codes, scales, block_size, qmap, shape)


def flashoptim_parts(
    name: str, signed: bool, shape: tuple[int, ...], seed: int = 0
) -> tuple[dict[str, Tensor], Tensor]:
    """NAME::quantized and NAME::scales, and the values: s y/(2 - |y|) with y = c/127, or (s c/255)^2."""
    numel = int(np.prod(shape))
    codes = random_bytes(numel, seed + 1)
    if signed:
        codes = codes.view(torch.int8)
    generator = torch.Generator().manual_seed(seed)
    scales = (10.0 ** (torch.rand(-(-numel // 32), generator=generator, dtype=torch.float32) * 6 - 5)).half()
    c = codes.numpy().astype(f32)
    s = scales.numpy().astype(f32)[np.arange(numel) // 32]
    y = c / f32(127 if signed else 255)
    values = y / (f32(2) - abs(y)) * s if signed else (y * s) * (y * s)
    parts = {f"{name}::quantized": codes.reshape(shape), f"{name}::scales": scales}
    return parts, torch.from_numpy(values).reshape(shape)
