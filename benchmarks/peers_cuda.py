"""The sides of compare_peers_cuda.py: the library through its C ABI and its Python package, and its peers.

Each optimizer has step(). A side whose package cannot be imported raises PeerMissingError when it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import harness  # noqa: F401  must be first: it adds tests/python to the import path
import octavo_abi as octavo
import torch
from makers import imported, torchao_class

LR, WEIGHT_DECAY, EPS = 1e-3, 1e-2, 1e-8
MIN_QUANTIZED = 4096  # elements; the states of smaller tensors stay fp32
BASE = "octavo 8bit"  # the others are divided by this side

Params = list[torch.nn.Parameter]


@dataclass(frozen=True)
class Side:
    name: str
    make: Callable[[Params], Any]
    dtypes: tuple[str, ...] = ("bf16", "fp32")  # of params and grads that the side supports


class OctavoAdamW:
    """Steps torch's tensors through the C ABI, on torch's current stream."""

    def __init__(self, params: Params, state: str, store: str = "nearest") -> None:
        device = params[0].device

        def zeros(byte_count: int) -> torch.Tensor:
            return torch.zeros(byte_count, dtype=torch.uint8, device=device)

        self._parameters = [
            octavo.Parameter(
                param.detach(),
                param.grad,
                state if param.numel() >= MIN_QUANTIZED else "fp32",
                store=store,
                allocate=zeros,
            )
            for param in params
        ]
        self._group = octavo.Group("adamw", self._parameters)
        self._count = 0
        self._on_gpu = device.type == "cuda"

    def step(self) -> None:
        self._count += 1
        stream = {"stream": torch.cuda.current_stream().cuda_stream} if self._on_gpu else {}
        self._group.step(self._count, **stream, lr=LR, weight_decay=WEIGHT_DECAY, eps=EPS)

    def state_bytes(self) -> int:
        residuals = (p.residual.nbytes for p in self._parameters if p.residual is not None)
        return sum(p.state_bytes() for p in self._parameters) + sum(residuals)


def package(state: str, **options: Any) -> Callable[[Params], Any]:
    """Returns the Python package's optimizer."""
    return lambda params: imported("octavo.optim").AdamW(
        params, lr=LR, weight_decay=WEIGHT_DECAY, eps=EPS, state=state, **options
    )


def sides() -> list[Side]:
    common: dict[str, Any] = {"lr": LR, "weight_decay": WEIGHT_DECAY, "eps": EPS}

    def torch_adamw(**options: bool) -> Callable[[Params], Any]:
        return lambda params: torch.optim.AdamW(params, **common, **options)

    def torchao(name: str) -> Callable[[Params], Any]:
        return lambda params: torchao_class(name)(params, **common)

    def flash(bits: int | None) -> Callable[[Params], Any]:
        return lambda params: imported("flashoptim").FlashAdamW(params, master_weight_bits=bits, **common)

    def ours(state: str, store: str = "nearest") -> Callable[[Params], Any]:
        return lambda params: OctavoAdamW(params, state, store)

    return [
        Side("octavo fp32", ours("fp32")),
        Side("octavo bf16", ours("bf16"), ("bf16",)),
        Side(BASE, ours("8bit")),
        Side("octavo 4bit", ours("4bit")),
        Side("octavo fp8", ours("fp8")),
        Side("octavo 8bit, 24-bit master", ours("8bit", "bf16+8"), ("bf16",)),
        Side("octavo.optim 8bit", package("8bit")),
        Side("octavo.optim 4bit", package("4bit")),
        Side("octavo.optim fp8", package("fp8")),
        Side("octavo.optim 8bit, clipped", package("8bit", clip_grad_norm=1.0)),
        Side("torch fused", torch_adamw(fused=True)),
        Side("torch foreach", torch_adamw(foreach=True)),
        Side("bitsandbytes 8bit", lambda p: imported("bitsandbytes").optim.AdamW8bit(p, **common)),
        Side("torchao 8bit", torchao("AdamW8bit")),
        Side("torchao 4bit", torchao("AdamW4bit")),
        Side("torchao fp8", torchao("AdamWFp8")),
        Side("flashoptim 8bit", flash(None)),
        Side("flashoptim 8bit, 24-bit master", flash(24), ("bf16",)),
    ]


def inner_tensors(value: Any, depth: int = 4) -> Iterable[torch.Tensor]:
    """Yields the plain tensors of an optimizer's state, also those that other objects wrap."""
    parts: Iterable[Any] = ()
    if isinstance(value, torch.Tensor):
        if not hasattr(value, "__tensor_flatten__"):
            yield value
            return
        parts = [getattr(value, name) for name in value.__tensor_flatten__()[0]]
    elif isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    elif hasattr(value, "__dict__"):
        parts = vars(value).values()
    if depth > 0:
        for part in parts:
            yield from inner_tensors(part, depth - 1)


def state_bytes(optimizer: Any, params: Params) -> int:
    if isinstance(optimizer, OctavoAdamW):
        return optimizer.state_bytes()
    own = {tensor.data_ptr() for param in params for tensor in (param, param.grad) if tensor is not None}
    # Maps that all parameters share have one address and count once.
    found = {tensor.data_ptr(): tensor.nbytes for tensor in inner_tensors(dict(optimizer.state))}
    return sum(size for at, size in found.items() if at not in own)
