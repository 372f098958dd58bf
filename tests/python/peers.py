"""torchao and bitsandbytes on the CPU, and the comparison of their states with the library's.

Both keep the codes and scales of docs/formats.md, so a peer's state is loaded by copying bytes. Codes are
compared after one step of each side from the same state, parameter and gradient, so that differences do not
accumulate:

- An element whose block has a scale below FLOOR on either side is not compared: torchao stores no scale
  below 1e-12, bitsandbytes divides zero by zero there. Its moment is below 1e-12.
- Every other element of torchao must be within one code of ours. (Its fp32 moments differ from ours by a
  few roundings, its ties go up and ours to the smaller magnitude, and it writes a small variance as code 0
  where we write 1.)
- bitsandbytes' CPU encoder first rounds the normalised moment x to a grid of 65,536 points, -1 + 2i/65535,
  none of which is zero. That moves x by up to GRID = 1/65535, which is further than one code where codes
  lie closer than GRID. There, and only there (`coarse`, computed from the map), its codes may be more than
  one away from the nearest; such elements are counted, and must be within one code of what that rounding
  gives. All others must be within one code of ours.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import pathlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import octavo_abi as octavo
import torch
from rounding import Bound, Hyper, U, ratio

FLOOR = 1e-12
GRID = 1.0 / 65535
SLACK = (
    2.0**-21
)  # of a block's maximum: eight roundings, more than a float32 moment and its normalisation take
BLOCK = {"8bit": 256, "4bit": 128, "fp8": 256}

Doubles = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Setting:
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2

    def octavo(self) -> dict[str, float]:
        b1, b2 = self.betas
        return {"lr": self.lr, "beta1": b1, "beta2": b2, "eps": self.eps, "weight_decay": self.weight_decay}


def pinned() -> dict[str, str]:
    """The versions that the tests run against, by distribution."""
    text = (pathlib.Path(__file__).resolve().parents[2] / "requirements-peers.txt").read_text()
    return dict(line.split("==") for line in text.splitlines() if "==" in line)


def missing(peer: str) -> str:
    """Why a peer cannot be used, and how to get it; empty when it can."""
    if importlib.util.find_spec(peer) is None:
        return f"{peer} is not installed: pip install --no-deps {peer}=={pinned()[peer]}"
    return ""


def need(peer: str) -> Any:
    """The peer's module. Where it is not installed the test skips; in CI, which installs it, it fails."""
    if reason := missing(peer):
        pytest = importlib.import_module("pytest")  # benchmarks use this module without it
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    return importlib.import_module(peer)


class Peer(Protocol):
    name: str
    state: str  # the library's name of the format
    grid_encoder: bool

    def step(self) -> None: ...
    def raw(self, slot: int) -> tuple[torch.Tensor, torch.Tensor]: ...
    def qmap(self, slot: int) -> torch.Tensor: ...


class Torchao:
    """AdamW8bit, AdamW4bit or AdamWFp8 over one parameter; not `compiled`, the same code runs eagerly."""

    grid_encoder = False
    classes = {"8bit": "AdamW8bit", "4bit": "AdamW4bit", "fp8": "AdamWFp8"}  # noqa: RUF012

    def __init__(
        self, param: torch.nn.Parameter, state: str, setting: Setting, compiled: bool = False
    ) -> None:
        self.name, self.state, self.param, self.compiled = "torchao", state, param, compiled
        kind = getattr(importlib.import_module("torchao.optim"), self.classes[state])
        self.optimizer = kind(
            [param],
            lr=setting.lr,
            betas=setting.betas,
            eps=setting.eps,
            weight_decay=setting.weight_decay,
        )

    def step(self) -> None:
        with contextlib.nullcontext() if self.compiled else torch.compiler.set_stance("force_eager"):
            self.optimizer.step()

    def _moment(self, slot: int) -> Any:
        return self.optimizer.state[self.param][("exp_avg", "exp_avg_sq")[slot]]

    def raw(self, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
        moment = self._moment(slot)
        return moment.codes.view(torch.uint8), moment.scale

    def qmap(self, slot: int) -> torch.Tensor:
        qmap: torch.Tensor = self._moment(slot).qmap
        return qmap

    def values(self, slot: int) -> torch.Tensor:
        values: torch.Tensor = self._moment(slot).dequantize()
        return values


class Bitsandbytes:
    """AdamW8bit over one parameter."""

    grid_encoder = True

    def __init__(
        self, param: torch.nn.Parameter, state: str, setting: Setting, compiled: bool = False
    ) -> None:
        if state != "8bit" or compiled:
            raise ValueError("bitsandbytes has 8-bit states, and nothing to compile")
        self.name, self.state, self.param = "bitsandbytes", state, param
        self.optimizer = importlib.import_module("bitsandbytes").optim.AdamW8bit(
            [param], lr=setting.lr, betas=setting.betas, eps=setting.eps, weight_decay=setting.weight_decay
        )

    def step(self) -> None:
        self.optimizer.step()

    def raw(self, slot: int) -> tuple[torch.Tensor, torch.Tensor]:
        state = self.optimizer.state[self.param]
        return state[f"state{slot + 1}"], state[f"absmax{slot + 1}"]

    def qmap(self, slot: int) -> torch.Tensor:
        qmap: torch.Tensor = self.optimizer.state[self.param][f"qmap{slot + 1}"]
        return qmap

    def values(self, slot: int) -> torch.Tensor:
        codes, scales = self.raw(slot)
        dequantize = importlib.import_module("bitsandbytes").functional.dequantize_blockwise
        values: torch.Tensor = dequantize(A=codes, absmax=scales, code=self.qmap(slot), blocksize=256)
        return values


MAKERS: dict[str, Callable[..., Any]] = {"torchao": Torchao, "bitsandbytes": Bitsandbytes}
PAIRS = (("torchao", "8bit"), ("torchao", "4bit"), ("torchao", "fp8"), ("bitsandbytes", "8bit"))


def ranks(packed: Any, state: str) -> Codes:
    """One integer per element, rising with the value that the code stands for."""
    codes = np.asarray(packed).view(np.uint8).reshape(-1)
    if state == "4bit":
        codes = np.stack([codes >> 4, codes & 15], axis=1).reshape(-1)
    wide = codes.astype(np.int64)
    return np.where(wide >= 128, 128 - wide, wide) if state == "fp8" else wide


def nearest(x: Doubles, qmap: Doubles) -> Codes:
    return np.searchsorted((qmap[1:] + qmap[:-1]) / 2, x, side="left").astype(np.int64)


def grid_code(x: Doubles, qmap: Doubles) -> Codes:
    """What bitsandbytes' CPU encoder gives a normalised x: the code of the grid point that float32 finds."""
    index = np.trunc((x.astype(np.float32) + np.float32(1)) * np.float32(32767.5) + np.float32(0.5))
    return nearest(index.astype(np.float64) * 2 / 65535 - 1, qmap)


def coarse_limit(qmap: Doubles) -> float:
    """The magnitude below which a shift by GRID can pass more than one boundary between codes."""
    boundaries = (qmap[1:] + qmap[:-1]) / 2
    boundaries = boundaries[boundaries > 0]
    narrow = boundaries[1:][np.diff(boundaries) < GRID]  # upper ends of cells narrower than the shift
    return float(narrow.max() + GRID)


@dataclass
class CodeReport:
    """Of one moment over all compared steps."""

    elements: int = 0
    low_scale: int = 0  # not compared: their block's scale is below FLOOR on a side
    coarse: int = 0  # compared with the peer's own rounding instead of with our code
    differ: int = 0  # of the compared, by one code
    worst: int = 0  # largest difference among the compared
    worst_coarse: int = 0  # largest difference from our code among the coarse
    worst_explained: int = 0  # largest difference among the coarse from the code the peer's grid explains
    worst_scale: float = 0.0  # largest relative difference of scales

    def line(self) -> str:
        compared = self.elements - self.low_scale - self.coarse
        text = f"{compared} compared, {self.differ} differ, by {self.worst} at most"
        text += f"; scales within {self.worst_scale:.1e}"
        if self.low_scale:
            text += f"; {self.low_scale} with a scale below {FLOOR:g} left out"
        if self.coarse:
            text += f"; {self.coarse} below the grid's resolution: {self.worst_coarse} codes from ours,"
            text += f" {self.worst_explained} from what the grid gives"
        return text


@dataclass
class Comparison:
    """A peer and the library side by side, the library re-synced from the peer before every step."""

    peer: Any
    setting: Setting
    param: torch.nn.Parameter
    mine: octavo.Parameter
    group: octavo.Group
    reports: list[CodeReport] = field(default_factory=lambda: [CodeReport(), CodeReport()])
    steps: int = 0
    param_ratio: float = (
        0.0  # largest difference of parameters after one step, as a fraction of the derived bound
    )

    def step(self) -> None:
        """One step of both from the peer's state. The gradient is param.grad."""
        before: list[Doubles] = [np.zeros(self.param.numel())] * 2
        self.mine.param.copy_(self.param.detach())
        if self.steps > 0:
            for slot in range(2):
                self.mine.load(slot, *self.peer.raw(slot))
                before[slot] = self.mine.moment(slot).astype(np.float64).reshape(-1)
        grad = self.mine.grad.double().numpy().reshape(-1)
        start = self.param.detach().double().numpy().reshape(-1).copy()
        self.steps += 1
        self.peer.step()
        self.group.step(self.steps, **self.setting.octavo())
        b1, b2 = self.setting.betas
        moments = (b1 * before[0] + (1 - b1) * grad, b2 * before[1] + (1 - b2) * grad**2)
        for slot, moment in enumerate(moments):
            self._compare(slot, moment)
        self._compare_params(grad, (start, *before), moments)

    def codes_differ(self) -> npt.NDArray[np.bool_]:
        """Elements of which the two sides keep different codes now, in either moment."""
        differ = np.zeros(self.param.numel(), dtype=np.bool_)
        for slot in range(2):
            theirs, _ = self.peer.raw(slot)
            differ |= ranks(theirs, self.peer.state) != ranks(self.mine.codes[slot], self.peer.state)
        return differ

    def _compare_params(
        self, grad: Doubles, before: tuple[Doubles, ...], moments: tuple[Doubles, Doubles]
    ) -> None:
        setting, (m, v) = self.setting, moments
        theirs = self.param.detach().double().numpy().reshape(-1)
        hyper = Hyper(setting.lr, setting.betas, setting.eps, setting.weight_decay)
        bound = Bound(hyper)
        bound.adam(self.steps, grad, before, (theirs, m, v))
        allowed = bound.param
        if self.peer.name == "torchao":
            # It rounds where torch does, and besides: the decay's two products, lr and the two bias
            # corrections as operands, and a lerp for v. The corrections themselves it computes in float32,
            # 1 - beta^t after rounding.
            step = torch.tensor(float(self.steps))
            exact = [1.0 - beta**self.steps for beta in setting.betas]
            rounded = [float(1 - beta**step) for beta in setting.betas]
            off = abs(exact[0] / rounded[0] - 1) + abs(np.sqrt(exact[1] / rounded[1]) - 1)
            update = setting.lr / exact[0] * abs(m) / (np.sqrt(v / exact[1]) + setting.eps)
            allowed = (
                allowed + (off + 8 * U) * update + 5 * U * setting.lr * setting.weight_decay * abs(before[0])
            )
        self.param_ratio = max(self.param_ratio, ratio(self.mine.param.reshape(-1), theirs, allowed))

    def _compare(self, slot: int, moment: Doubles) -> None:
        state, report = self.peer.state, self.reports[slot]
        block = BLOCK[state]
        their_codes, their_scales = self.peer.raw(slot)
        theirs, mine = ranks(their_codes, state), ranks(self.mine.codes[slot], state)
        scales = np.asarray(their_scales).astype(np.float64)
        my_scales = self.mine.scales[slot].view(np.float32).astype(np.float64)
        floor = FLOOR / 448 if state == "fp8" else FLOOR
        live = (scales > floor) & (my_scales > floor)
        if live.any():
            off = np.max(abs(scales[live] / my_scales[live] - 1))
            report.worst_scale = max(report.worst_scale, float(off))
        normal = np.repeat(live, block)[: moment.size]
        coarse = np.zeros_like(normal)
        distance = abs(mine - theirs)
        if self.peer.grid_encoder:
            qmap = self.peer.qmap(slot).double().numpy()
            padded = np.append(moment, np.zeros(-moment.size % block)).reshape(-1, block)
            largest = abs(padded).max(axis=1, keepdims=True)
            x = (padded / np.where(largest > 0, largest, 1)).reshape(-1)[: moment.size]
            coarse = normal & (abs(x) < coarse_limit(qmap))
            low, high = (grid_code(x + sign * SLACK, qmap) for sign in (-1, 1))
            explained = np.maximum(low - theirs, theirs - high)
            report.worst_explained = max(report.worst_explained, int(explained[coarse].max(initial=0)))
            report.worst_coarse = max(report.worst_coarse, int(distance[coarse].max(initial=0)))
        compared = normal & ~coarse
        report.elements += moment.size
        report.low_scale += int((~normal).sum())
        report.coarse += int(coarse.sum())
        report.differ += int((distance[compared] > 0).sum())
        report.worst = max(report.worst, int(distance[compared].max(initial=0)))


def make_comparison(
    name: str, state: str, initial: torch.Tensor, setting: Setting, compiled: bool = False
) -> Comparison:
    param = torch.nn.Parameter(initial.clone())
    param.grad = torch.zeros_like(param)
    peer = MAKERS[name](param, state, setting, compiled)
    mine = octavo.Parameter(initial.clone(), param.grad, state)
    return Comparison(peer, setting, param, mine, octavo.Group("adamw", [mine]))


def gradients(shape: tuple[int, ...], steps: int, seed: int) -> Iterator[torch.Tensor]:
    """Normal numbers, scaled by element (1e-3 to 1e-2); some elements, and a whole block, never get any."""
    generator = torch.Generator().manual_seed(seed)
    scale = 10.0 ** (torch.rand(shape, generator=generator) - 3)
    scale.view(-1)[512:768] = 0.0
    scale.view(-1)[1024::97] = 0.0
    for _ in range(steps):
        yield scale * torch.randn(shape, generator=generator)
