"""The arms of the convergence benchmark: an AdamW each, and a codec that is known to be bad.

`fp32` is the reference: octavo with fp32 states. `torch` is the null: the same formula with other roundings,
so that its difference is the effect of any change of rounding. `bad` is octavo's fp32 whose v passes through
a 4-bit map with a zero after every step (blocks of 128): small second moments become 0, and the next update
is divided by little more than its own gradient. The statistics must not call it equivalent.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

REFERENCE, NULL, BAD = "fp32", "torch", "bad"
# Octavo's state formats; each is an arm.
STATES = ("fp32", "bf16", "8bit", "fp8", "fp8-e5m2", "4bit", "4bit-rank1", "fp4", "fp3")
ARMS = (*STATES, NULL, BAD)
DEFAULT_ARMS = (REFERENCE, NULL, "8bit", "fp8", "4bit", BAD)
BLOCK = 128


def octavo_adamw() -> Any:
    """Returns octavo.optim.AdamW of the installed package, else of this checkout."""
    sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "adapters/python"))
    try:
        from octavo.optim import AdamW
    finally:
        sys.path.pop()
    return AdamW


def zero_map() -> Tensor:
    """Returns the 16 values of the unsigned dynamic 4-bit map: 0, decades of 2, 4 and 8 midpoints, 1."""
    values = [0.0]
    for d in (1, 2, 3):
        values += [10.0 ** (d - 3) * (0.1 + 0.9 * (j + 0.5) / 2**d) for j in range(2**d)]
    return torch.tensor([*values, 1.0])


class ZeroCodec:
    """Encodes and decodes tensors with the bad map in place: blocks of 128, absolute maximum, nearest."""

    def __init__(self, device: torch.device) -> None:
        self.values = zero_map().to(device)
        self.midpoints = (self.values[1:] + self.values[:-1]) / 2

    def round_trip_(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            flat = tensor.view(-1)
            blocks = torch.nn.functional.pad(flat, (0, -flat.numel() % BLOCK)).view(-1, BLOCK)
            scale = blocks.amax(dim=1, keepdim=True)
            codes = torch.bucketize(blocks / scale.clamp_min(2.0**-126), self.midpoints)
            flat.copy_((self.values[codes] * scale).view(-1)[: flat.numel()])


class Arm:
    """The optimizer of one arm over fp32 parameters. With `graph` the step reads `lr` on the device.

    `seed` is the seed of stochastic rounding, which only the states fp4 and fp3 use.
    """

    def __init__(
        self,
        name: str,
        parameters: Sequence[Tensor],
        *,
        beta2: float,
        weight_decay: float,
        lr: Tensor,
        graph: bool,
        seed: int = 0,
    ) -> None:
        self.lr, self.graph = lr, graph
        matrices = [p for p in parameters if p.dim() > 1]
        gains = [p for p in parameters if p.dim() == 1]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": gains, "weight_decay": 0.0}]
        options = {"lr": lr if graph else 0.0, "betas": (0.9, beta2), "eps": 1e-8, "capturable": graph}
        self.optimizer: torch.optim.Optimizer
        if name == NULL:
            self.optimizer = torch.optim.AdamW(groups, fused=True, **options)  # type: ignore[arg-type]
        elif name in ARMS:
            state = "fp32" if name == BAD else name
            self.optimizer = octavo_adamw()(groups, state=state, min_quantized_size=0, seed=seed, **options)
        else:
            raise ValueError(f"unknown arm {name!r}: give one of {', '.join(ARMS)}")
        codec = ZeroCodec(lr.device) if name == BAD else None
        self._after: Callable[[], None] | None = None
        if codec is not None:
            self._after = lambda: codec.round_trip_(
                [self.optimizer.state[p]["exp_avg_sq"] for p in parameters]
            )

    def step(self) -> None:
        if not self.graph:
            for group in self.optimizer.param_groups:
                group["lr"] = float(self.lr)
        self.optimizer.step()
        if self._after is not None:
            self._after()

    def reset(self) -> None:
        """Sets all states to zero bytes, as before the first step; in place, for the graph."""
        for state in self.optimizer.state.values():
            for tensor in state.values():
                tensor.view(-1).view(torch.uint8).zero_()

    def state_bytes(self) -> int:
        """Returns the bytes of the moments, without step counts."""
        states = self.optimizer.state.values()
        return sum(t.nbytes for state in states for name, t in state.items() if "step" not in name)
