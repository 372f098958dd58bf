"""offload_gradients: gradients go to host memory in the backward pass as they are complete, are freed on
their device, and add up there until step().

DistributedDataParallel averages gradients only after the hooks, so where there is a process group the
gradients of plain tensors stay on the device until step(). GradScaler looks for infinities on the device:
it finds those of the gradients that were taken in one that stays there, that of the witness: the smallest
parameter that has a gradient in this step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._engine import stream_of
from .._shards import local
from .._warn import warn
from .hooks import GradientHooks, averaged_later

if TYPE_CHECKING:
    from .base import Optimizer


class GradientOffload(GradientHooks):
    def __init__(self, optimizer: Optimizer) -> None:
        self._witness: dict[torch.device, tuple[Tensor, int | None]] = {}  # and its gradient's stream
        self._infinite: dict[torch.device, Tensor] = {}  # not zero: a gradient that was taken is not finite
        self._warned = False
        super().__init__(optimizer)

    def completed(self, optimizer: Optimizer, group: dict[str, Any], param: Tensor) -> None:
        if averaged_later(param):
            if not self._warned:
                self._warned = True
                warn(
                    "offload_gradients: there is a process group, and DistributedDataParallel would average "
                    "gradients after they were taken: those of plain tensors stay on the device until step()"
                )
            return
        if optimizer._roster.member(param) is None:
            optimizer._roster.sync(optimizer.param_groups)
        away = optimizer._offload
        assert away is not None
        free = self._bear_witness(param) if _asks_scaler(optimizer) else param
        if free is not None and away.is_away(optimizer._roster.known(free)):
            self.gather(optimizer, free)

    @torch.no_grad()
    def use(self, optimizer: Optimizer, params: list[Tensor]) -> None:
        away = optimizer._offload
        assert away is not None
        if _asks_scaler(optimizer):
            self._look(params)
        away.take(params)

    def end_of_backward(self) -> None:
        super().end_of_backward()
        self._tell_scaler()

    def before_step(self, optimizer: Optimizer) -> None:
        """Takes what came by other ways, and says where a scaler cannot do what it is there for."""
        away = optimizer._offload
        assert away is not None
        self.end_of_backward()
        lost = [device for device in self._infinite if self._witness_of(device) is None]
        away.take_second(optimizer._roster.registered())
        for group in optimizer.param_groups:  # parameters may have been unfrozen, or replaced
            self.watch(group)
        if not away.held or getattr(optimizer, "found_inf", None) is None:
            return
        name = type(optimizer).__name__
        if getattr(optimizer, "grad_scale", None) is None:
            raise RuntimeError(
                f"{name}: GradScaler.unscale_() cannot reach gradients that offload_gradients has taken; let "
                "step() unscale and clip (fused=True, clip_grad_norm=...), or use no offload_gradients"
            )
        if not self._infinite:
            raise RuntimeError(
                f"{name}: GradScaler needs fused=True to see gradients that offload_gradients has taken"
            )
        if lost:
            raise RuntimeError(
                f"{name}: GradScaler finds infinities of gradients that offload_gradients has taken in one "
                "that stays on the device, and somebody has removed that since the backward pass"
            )
        self._infinite = {}

    def forget(self) -> None:
        """The gradients of this step are not wanted."""
        super().forget()
        optimizer = self._optimizer()
        if optimizer is not None and optimizer._offload is not None:
            optimizer._offload.drop()
        self._infinite = {}

    # --- GradScaler -------------------------------------------------------------------------------

    def _bear_witness(self, param: Tensor) -> Tensor | None:
        """Makes the parameter the witness where it is smaller. Returns whose gradient need not stay."""
        here = local(param)
        stream, witness = stream_of(here.device), self._witness_of(here.device)
        if witness is param:
            return None
        if not here.numel() or (witness is not None and local(witness).numel() <= here.numel()):
            return param
        _, before = self._witness.get(here.device, (None, None))
        self._witness[here.device] = param, stream
        return witness if before == stream else None  # others are in order on their stream alone: they stay

    def _witness_of(self, device: torch.device) -> Tensor | None:
        """The witness, where it has a gradient that a scaler sees."""
        witness, _ = self._witness.get(device, (None, None))
        optimizer = self._optimizer()
        if witness is None or witness.grad is None or optimizer is None:
            return None
        return None if optimizer._roster.member(witness) is None else witness

    def _look(self, params: list[Tensor]) -> None:
        """Notes whether any of these gradients, all on one device, is not finite."""
        grads = [local(p.grad) for p in params]  # type: ignore[arg-type]
        device = grads[0].device
        if device not in self._infinite:
            self._infinite[device] = torch.zeros((), dtype=torch.float32, device=device)
        one = torch.ones((), dtype=torch.float32, device=device)
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for grad in grads:
            by_dtype.setdefault(grad.dtype, []).append(grad)
        for some in by_dtype.values():
            torch._amp_foreach_non_finite_check_and_unscale_(some, self._infinite[device], one)

    @torch.no_grad()
    def _tell_scaler(self) -> None:
        """Makes the witness's gradient infinite where one that was taken is; such a step is skipped."""
        for device, infinite in self._infinite.items():
            if (witness := self._witness_of(device)) is not None:
                grad = local(witness.grad)  # type: ignore[arg-type]
                first = grad[(slice(0, 1),) * grad.dim()] if grad.dim() else grad
                first += torch.where(infinite > 0, torch.inf, 0.0).to(first.dtype)


def _asks_scaler(optimizer: Optimizer) -> bool:
    return any(group.get("fused") for group in optimizer.param_groups)
