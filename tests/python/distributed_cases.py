"""Parameters, gradients and expectations of the distributed checks.

The reference is always the same optimizer on whole parameters in one process. A shard's blocks start at its
first element (docs/formats.md): where the shards' first elements are multiples of the block, its states and
parameters are the whole's in bits; elsewhere `Drift` bounds the difference.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from octavo import optim
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

SHAPES: dict[str, tuple[int, ...]] = {
    "rows512": (24, 512),
    "rows640": (21, 640),  # 2 and 3 ranks: 8-bit blocks of 256 begin inside a row and across ranks
    "rows640_even": (24, 640),  # the same rows, but shards end where a block does
    "rows896": (18, 896),
    "odd": (701, 7),
    "conv": (20, 16, 3, 5),
    "bias": (5000,),
    "wide": (2, 2496),  # fewer rows than three ranks: an empty shard
    "one": (1, 5120),
    "late": (16, 512),  # its first gradient comes at step 3
    "small": (33, 7),  # fp32 states
    "tiny": (2, 7),
    "single": (1,),
}
FIRST_STEP = {"late": 3}
BLOCKS = {"8bit": 256, "4bit": 128, "fp8": 256, "fp8-e5m2": 256}
LR, BETAS, EPS, DECAY = 1e-2, (0.9, 0.99), 1e-8, 0.1


def quantised(name: str) -> bool:
    return torch.Size(SHAPES[name]).numel() >= 4096


class Parameters(nn.Module):
    """One parameter per shape, the same numbers in every process."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        for index, (name, shape) in enumerate(SHAPES.items()):
            values = torch.randn(shape, generator=torch.Generator().manual_seed(index))
            self.register_parameter(name, nn.Parameter(values.to(dtype)))


@dataclasses.dataclass
class Run:
    """Parameters with their optimizer; whole, or sharded over a mesh."""

    module: nn.Module
    optimizer: optim.AdamW
    steps: int = 0

    def advance(self, steps: int = 1) -> None:
        for _ in range(steps):
            self.steps += 1
            for name, param in self.module.named_parameters():
                given = gradient(name, self.steps)
                param.grad = None if given is None else as_split(given.to(param.dtype), param)
            self.optimizer.step()

    def param(self, name: str) -> Tensor:
        return self.module.get_parameter(name)

    def state(self, name: str) -> dict[str, Any]:
        return self.optimizer.state[self.param(name)]


def make(
    mesh: DeviceMesh | None,
    state: str,
    master: str | int = "stochastic",
    dtype: torch.dtype = torch.bfloat16,
    **more: Any,
) -> Run:
    module = Parameters(dtype)
    if mesh is not None:
        fully_shard(module, mesh=mesh)
    options = {"lr": LR, "betas": BETAS, "eps": EPS, "weight_decay": DECAY, "seed": 7, **more}
    return Run(module, optim.AdamW(module.parameters(), state=state, master=master, **options))


def gradient(name: str, step: int) -> Tensor | None:
    """Of a whole parameter: normal numbers, smaller in later columns; None before its first step."""
    if step < FIRST_STEP.get(name, 1):
        return None
    shape = SHAPES[name]
    values = torch.randn(
        shape, generator=torch.Generator().manual_seed(1000 * step + list(SHAPES).index(name))
    )
    return values * torch.logspace(0, -2, shape[-1])


def rows_here(whole: Tensor, param: Tensor) -> Tensor:
    """The rows of `whole` that this process has of `param`, by torch's word."""
    if not isinstance(param, DTensor) or not whole.dim():
        return whole
    shape, offset = compute_local_shape_and_global_offset(param.shape, param.device_mesh, param.placements)
    return whole[offset[0] : offset[0] + shape[0]] if shape[0] else whole[:0]


def as_split(whole: Tensor, param: Tensor) -> Tensor:
    """`whole` split as `param` is, without communication."""
    if not isinstance(param, DTensor):
        return whole
    here = rows_here(whole, param).contiguous()
    return DTensor.from_local(
        here, param.device_mesh, param.placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def aligned(name: str, state: str, world: int) -> bool:
    """Whether every shard begins where a block of the whole does; always so without blocks."""
    if state not in BLOCKS or not quantised(name):
        return True
    rows, row = SHAPES[name][0], torch.Size(SHAPES[name][1:]).numel()
    chunk = -(-rows // world)
    return all(rank * chunk * row % BLOCKS[state] == 0 for rank in range(world) if rank * chunk < rows)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal dtype, shape and bytes: NaN equals itself, -0 does not equal 0."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(as_bytes(a), as_bytes(b))


def as_bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().flatten().view(torch.uint8)


def moments(run: Run) -> dict[str, dict[str, Tensor]]:
    """exp_avg and exp_avg_sq of each parameter here, decoded to fp32."""
    saved = run.optimizer.portable_state_dict()["state"]
    names = [name for name, _ in run.module.named_parameters()]
    return {
        names[number]: {key: local(entry[key]) for key in ("exp_avg", "exp_avg_sq")}
        for number, entry in saved.items()
    }


def element_scales(values: Tensor, block: int) -> Tensor:
    """The largest magnitude of the block of each element, blocks beginning at the first."""
    flat = values.detach().double().abs().flatten()
    padded = torch.cat([flat, flat.new_zeros(-flat.numel() % block)]).view(-1, block)
    largest = padded.amax(dim=1) if padded.numel() else padded.new_zeros(0)
    return largest.repeat_interleave(block)[: flat.numel()].view(values.shape)


# What encoding changes at most, in units of the block's largest magnitude: half the widest gap of the maps in
# docs/formats.md. The signed ones have no -1, which costs as much; the 4-bit v has no 0, so that 0 becomes
# 1/16. 2^-22 covers the roundings of reciprocal, product and decoding.
ENCODING_ERROR = {
    "8bit": {"exp_avg": 0.9 / 64 / 2, "exp_avg_sq": 0.9 / 128 / 2},
    "4bit": {"exp_avg": 0.225 / 2, "exp_avg_sq": 1 / 16},
}
FP_SLACK = 2.0**-22


class Drift:
    """A bound on |shard - whole| for a parameter and its moments when their blocks lie differently.

    Both sides start equal and get the same gradients and the same noise. A step computes new moments from
    decoded ones, updates the parameter with them and encodes them:

      D(m') = b1 D(m),  D(v') = b2 D(v)
      D(p)  = keep D(p) + max |U(m' +- D(m'), v' +- D(v')) - U(m', v')|     U = s m / (sqrt(v) / c + eps)
            + 12 u (|p| + |U|)           roundings: on either side keep and the sum for p, four more for U
            + 2^-7 |p| for bf16          equal noise rounds x and y at most |x - y| and one ulp apart
      D(m)  = D(m') + error of encoding on either side, and so D(v)

    v' is at least (1 - b2) g^2 on both sides. U is monotonic in m and in v: its extremes are at corners.
    """

    def __init__(self, state: str, shape: torch.Size) -> None:
        self.error = ENCODING_ERROR[state]
        self.block = BLOCKS[state]
        self.param = torch.zeros(shape, dtype=torch.float64)
        self.moment = {key: torch.zeros(shape, dtype=torch.float64) for key in self.error}

    def update(
        self, step: int, grad: Tensor, before: dict[str, Tensor], param: Tensor, other: Tensor
    ) -> None:
        """`before` are the whole's moments, `param` and `other` the new parameters of whole and shard."""
        b1, b2 = BETAS
        g, p = grad.double(), torch.maximum(param.double().abs(), other.double().abs())
        m = b1 * before["exp_avg"].double() + (1 - b1) * g
        v = b2 * before["exp_avg_sq"].double() + (1 - b2) * g * g
        dm, dv = b1 * self.moment["exp_avg"], b2 * self.moment["exp_avg_sq"]
        s, c = LR / (1 - b1**step), (1 - b2**step) ** 0.5

        def moved(m: Tensor, v: Tensor) -> Tensor:
            return s * m / (v.sqrt() / c + EPS)

        lowest = torch.maximum(v - dv, (1 - b2) * g * g)
        corners = [moved(m + sign * dm, bound) for sign in (-1, 1) for bound in (lowest, v + dv)]
        reach = torch.stack([corner.abs() for corner in corners]).amax(dim=0)
        spread = torch.stack([(corner - moved(m, v)).abs() for corner in corners]).amax(dim=0)
        self.param = (1 - LR * DECAY) * self.param + spread + 12 * 2.0**-24 * (p + reach)
        if param.dtype == torch.bfloat16:
            self.param += 2.0**-7 * p
        self.moment = {"exp_avg": dm, "exp_avg_sq": dv}

    def encode(self, key: str, scales: Tensor, other: Tensor) -> None:
        """`scales` and `other` are the whole's and the shard's, one for each element."""
        self.moment[key] = self.moment[key] + (self.error[key] + FP_SLACK) * (
            scales.double() + other.double()
        )
