"""offload_gradients: a gradient moves to host memory in the backward pass when it is complete, is freed on
its device, and accumulates in host memory until step().

DistributedDataParallel averages gradients only after the hooks, so in a process group the gradients of plain
tensors stay on the device until step(). GradScaler looks for infinities on the device. One gradient stays
there for it, that of the witness: the smallest parameter with a gradient in this step. The witness's gradient
becomes infinite if an offloaded gradient is not finite.

clip_grad_norm_ reaches only gradients on the device. step() looks at one of them. If its values have changed,
the gradients in host memory lack the change, which is an error. If it was written with equal values, a norm
was measured or the limit was large, which is a warning. If all parameters are offloaded, the gradient of the
smallest one stays on the device for this check (the sample).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..._engine import stream_of
from ..._shards import local
from ..._warn import warn
from ..hooks import GradientHooks, averaged_later

if TYPE_CHECKING:
    from ..optimizer import Optimizer
    from ..roster import Member


class GradientOffload(GradientHooks):
    def __init__(self, optimizer: Optimizer) -> None:
        # The witness, and its gradient's stream.
        self._witness: dict[torch.device, tuple[Tensor, int | None]] = {}
        self._infinite: dict[torch.device, Tensor] = {}  # not zero: an offloaded gradient is not finite
        self._warned = False
        self._sample: Tensor | None = None  # an offloaded parameter whose gradient stays on the device
        self._chosen_for = -1  # the number of handles when the sample was chosen
        self._warned_of_norm = False
        self._sample_grad: _SampleGradient | None = None
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
        roster = optimizer._roster
        if (member := roster.find_member(param)) is None:
            roster.update_members(optimizer.param_groups)
            member = roster.member_of(param)
        if self._chosen_for != roster.handles:
            self._choose_sample(optimizer)
        away = optimizer._offload
        assert away is not None
        free: Tensor | None = param
        if scaled := _uses_scaler(optimizer):
            free = self._update_witness(param)
            member = member if free is None else roster.member_of(free)
        if free is not None and free is not self._sample and away.is_offloaded(member):
            self.gather(optimizer, free)
        elif not scaled and (self._sample_grad is None or self._sample_grad.param is param):
            self._sample_grad = _SampleGradient(param)

    @torch.no_grad()
    def use(self, optimizer: Optimizer, params: list[Tensor]) -> None:
        away = optimizer._offload
        assert away is not None
        if _uses_scaler(optimizer):
            self._check_finite(params)
        away.pop_grads(params)

    def end_of_backward(self) -> None:
        super().end_of_backward()
        self._mark_witness_infinite()

    def before_step(self, optimizer: Optimizer) -> None:
        """Offloads gradients that hooks have not seen, and checks that a scaler could see all gradients."""
        away = optimizer._offload
        assert away is not None
        self.end_of_backward()
        self._check_unchanged(optimizer)
        lost = [device for device in self._infinite if self._witness_of(device) is None]
        away.pop_late_grads(optimizer._roster.registered())
        for group in optimizer.param_groups:  # parameters may have been unfrozen, or replaced
            self.watch(group)
        if not away.host_grads or getattr(optimizer, "found_inf", None) is None:
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
                "that stays on the device, but this one was removed since the backward pass"
            )
        self._infinite = {}

    def forget(self) -> None:
        """Discards the gradients of this step."""
        super().forget()
        optimizer = self._optimizer()
        if optimizer is not None and optimizer._offload is not None:
            optimizer._offload.discard_grads()
        self._infinite, self._sample_grad = {}, None

    # --- Clipping ---------------------------------------------------------------------------------

    def _choose_sample(self, optimizer: Optimizer, among: Iterable[Member] = ()) -> None:
        """Chooses the smallest parameter of `among`, or of all if all are offloaded."""
        away: Any = optimizer._offload
        self._chosen_for = optimizer._roster.handles
        trained = [m for m in optimizer._roster.members if m.param.requires_grad]
        among = list(among) or (trained if all(map(away.is_offloaded, trained)) else [])
        self._sample = min((m.param for m in among), key=Tensor.numel, default=None)
        if self._sample is not None and away.options.accumulate_in_fp32:
            self._offload_before_adding(optimizer, self._sample)

    def _offload_before_adding(self, optimizer: Optimizer, sample: Tensor) -> None:
        """Offloads the sample's earlier gradient before torch would add to it in its own dtype."""
        own, owner = weakref.ref(self), weakref.ref(optimizer)

        def add(_: Tensor) -> None:
            hooks, optimizer = own(), owner()
            if hooks is None or optimizer is None or hooks._sample is not sample or sample.grad is None:
                return
            with hooks._lock, torch.no_grad():
                hooks.use(optimizer, [sample])

        self._hooked[-len(self._hooked) - 1] = (weakref.ref(sample), sample.register_hook(add))

    def _check_unchanged(self, optimizer: Optimizer) -> None:
        """Raises RuntimeError if gradients on the device were changed, but those in host memory were not."""
        held = optimizer._offload.host_grads  # type: ignore[union-attr]
        if not held or getattr(optimizer, "found_inf", None) is not None:  # a scaler writes to them
            self._sample_grad = None
            return
        if self._sample_grad is None:  # the sample was not used
            self._choose_sample(optimizer, [m for m in optimizer._roster.members if m.handle in held])
            return
        if self._sample_grad.was_written():
            if self._sample_grad.is_equal():
                self._warn_of_norm(optimizer)
                return
            member = optimizer._roster.member_of(self._sample_grad.param)
            raise RuntimeError(
                f"{optimizer.label_of(member)}: its gradient was changed in place since the backward "
                "pass, but offload_gradients has moved other gradients to host memory, where the change did "
                "not reach them. If clip_grad_norm_ has changed it (max_grad_norm in transformers, "
                "gradient_clip_val in Lightning), clip with the optimizer's clip_grad_norm instead"
            )
        self._sample_grad = None

    def _warn_of_norm(self, optimizer: Optimizer) -> None:
        self._sample_grad = None
        if not self._warned_of_norm:
            self._warned_of_norm = True
            warn(
                f"{type(optimizer).__name__}: clip_grad_norm_, or another call that writes gradients, "
                "reached only the gradients on the device: offload_gradients has moved others to host "
                "memory. The norm that it returned lacks them, and they were not clipped. Use the "
                "optimizer's clip_grad_norm, and grad_norm for the norm of all gradients"
            )

    # --- GradScaler -------------------------------------------------------------------------------

    def _update_witness(self, param: Tensor) -> Tensor | None:
        """Makes the parameter the witness if it is smaller. Returns one whose gradient need not stay."""
        here = local(param)
        stream, witness = stream_of(here.device), self._witness_of(here.device)
        if witness is param:
            return None
        if not here.numel() or (witness is not None and local(witness).numel() <= here.numel()):
            return param
        _, before = self._witness.get(here.device, (None, None))
        self._witness[here.device] = param, stream
        return witness if before == stream else None  # a gradient of another stream is not ordered: it stays

    def _witness_of(self, device: torch.device) -> Tensor | None:
        """Returns the witness if it has a gradient that a scaler sees."""
        witness, _ = self._witness.get(device, (None, None))
        optimizer = self._optimizer()
        if witness is None or witness.grad is None or optimizer is None:
            return None
        return None if optimizer._roster.find_member(witness) is None else witness

    def _check_finite(self, params: list[Tensor]) -> None:
        """Notes if any of these gradients, which are on one device, is not finite."""
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
    def _mark_witness_infinite(self) -> None:
        """Makes the witness's gradient infinite if an offloaded one is, so the scaler skips the step."""
        for device, infinite in self._infinite.items():
            if (witness := self._witness_of(device)) is not None:
                grad = local(witness.grad)  # type: ignore[arg-type]
                first = grad[(slice(0, 1),) * grad.dim()] if grad.dim() else grad
                first += torch.where(infinite > 0, torch.inf, 0.0).to(first.dtype)


class _SampleGradient:
    """A gradient that stays on the device, with its version and values after the backward pass."""

    def __init__(self, param: Tensor) -> None:
        self.param, self._grad = param, param.grad
        grad = local(self._grad)  # type: ignore[arg-type]
        self._version, self._values = grad._version, _first_values(grad)

    def was_written(self) -> bool:
        grad = self._grad
        return self.param.grad is grad and local(grad)._version != self._version  # type: ignore[arg-type]

    def is_equal(self) -> bool:
        """Waits for the device."""
        now = _first_values(local(self._grad))  # type: ignore[arg-type]
        return torch.allclose(now, self._values, rtol=0, atol=0, equal_nan=True)


def _first_values(grad: Tensor) -> Tensor:
    return grad.detach().reshape(-1)[:4096].clone()


def _uses_scaler(optimizer: Optimizer) -> bool:
    # Every hook calls this, and a generator is slower than a loop.
    for group in optimizer.param_groups:  # noqa: SIM110
        if group.get("fused"):
            return True
    return False
