"""Gradient release: a parameter is stepped in the backward pass when its gradient is complete, and the
gradient is freed. The gradients of all parameters are then never in memory at the same time.

With clipping or skip_nonfinite each gradient has a norm, and parameters are stepped one by one.

Gradient release needs one backward pass per step (no accumulation, no GradScaler): a gradient that is
complete a second time before step() is an error. The norm of a step is known only with its last gradient, so
clipping uses the norm of the previous step, and the first step is not clipped. FSDP2 calls the hooks after it
has reduced its shards of gradients. DistributedDataParallel averages gradients after the hooks have freed
them, so it is refused: in a process group the first gradients of plain tensors wait for step(), which checks
that they were not written since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .hooks import GradientHooks, averaged_later
from .norms import new_norms, reduce_over_ranks

if TYPE_CHECKING:
    from .optimizer import Optimizer
    from .roster import Member

_Seen = tuple[Tensor, int, int]  # a gradient, its address and its version


class GradientRelease(GradientHooks):
    def __init__(self, optimizer: Optimizer) -> None:
        # The norms of this step's gradients, and the norms that clip them, by device and handle.
        self._own: dict[torch.device, Tensor] = {}
        self._outgrown: list[Tensor] = []  # rows that were too few; the engine reads them until the step ends
        self._stepped = False  # whether any parameter was stepped since the last step()
        self._complete: dict[int, Tensor] = {}  # parameters with a complete gradient in this step, by id
        self._waiting: dict[int, _Seen] = {}  # gradients that wait for step(), by the parameter's id
        self._trusted = False  # gradients are not averaged after the hooks
        self._alone = False  # each gradient has its own norm
        super().__init__(optimizer)

    def forget(self) -> None:
        """Forgets what this step has done so far, because other states were loaded."""
        with self._lock:
            self._complete, self._waiting, self._stepped = {}, {}, False
            super().forget()
            if (optimizer := self._optimizer()) is not None:
                optimizer._engine.forget_ready()

    def completed(self, optimizer: Optimizer, group: dict[str, Any], param: Tensor) -> None:
        if id(param) in self._complete:
            param.grad = None  # so that step() ends this step
            raise RuntimeError(
                f"{_label(optimizer, group, param)}: its gradient is complete a second time since the "
                "last step(), and gradient_release has used the first one already; it takes one backward "
                "pass per step(): no gradient accumulation (gradient_accumulation_steps=1, "
                "accumulate_grad_batches=1), or no gradient_release"
            )
        if not self._complete:  # options change between steps only, and there are many parameters
            self._alone = optimizer.needs_norm()
        self._complete[id(param)] = param
        if not self._trusted and averaged_later(param):
            self._waiting[id(param)] = _seen(param.grad)  # type: ignore[arg-type]
        elif self._alone:
            self.use(optimizer, [param])
        else:
            self.gather(optimizer, param)

    def end_of_backward(self) -> None:
        super().end_of_backward()
        optimizer = self._optimizer()
        away = None if optimizer is None else optimizer._offload
        if away is not None and away.attached is None:
            away.wait()  # from now on weights may be used

    @torch.no_grad()
    def use(self, optimizer: Optimizer, params: list[Tensor]) -> None:
        optimizer.step_params(params, lambda tensors: self._step_now(optimizer, tensors.members[0]))
        for param in params:
            param.grad = None
        self._stepped = True

    def _step_now(self, optimizer: Optimizer, member: Member) -> None:
        """Steps one parameter, clipped by the norm of the previous step and skipped if its own gradient is
        not finite. Without norms it steps several parameters.
        """
        engine, args = optimizer._engine, optimizer._buffers.args
        if not optimizer.needs_norm():
            engine.ready(args, None, None)
            return
        rows = self._own.get(member.device)
        if rows is None or len(rows) <= member.handle:
            self._outgrown.extend([] if rows is None else [rows])
            rows = self._own[member.device] = new_norms(member.device, optimizer._roster.handles, 2)
        own = rows[member.handle]
        combine = (lambda: own[0].copy_(reduce_over_ranks(own[0], member.groups))) if member.groups else None
        engine.ready(args, own.data_ptr(), combine)

    def end_of_step(self, optimizer: Optimizer) -> None:
        """Steps the parameters that still have a gradient, and stores this step's norm for the next step."""
        with self._lock:
            self.end_of_backward()  # if the backward pass failed before its end
            for number, (grad, _, _) in self._waiting.items():
                if self._complete[number].grad is None:  # zero_grad() came before step()
                    self._complete[number].grad = grad
            left = [(g, p) for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
            for group, param in left:
                self._check_untouched(optimizer, group, param)
            for _, param in left:
                self.use(optimizer, [param])
            self._trusted = self._trusted or bool(self._waiting)
            self._complete, self._waiting = {}, {}
            for group in optimizer.param_groups:  # parameters may have been unfrozen, or replaced
                self.watch(group)
            stepped, self._stepped = self._stepped, False
            optimizer.end_release(stepped)
            self._outgrown = []

    def _check_untouched(self, optimizer: Optimizer, group: dict[str, Any], param: Tensor) -> None:
        """Raises RuntimeError if a gradient was written after its hook was called."""
        if id(param) not in self._complete:
            return  # no hook was called: it was frozen, or is new, or user code set the gradient
        seen = self._waiting.get(id(param))
        if seen is None or param.grad is not seen[0] or _seen(seen[0])[1:] != seen[1:]:
            self.forget()
            raise RuntimeError(
                f"{_label(optimizer, group, param)}: its gradient was written after it was complete. "
                "gradient_release steps each parameter before DistributedDataParallel averages its gradient "
                "or clip_grad_norm_ clips it; use FSDP2, the argument clip_grad_norm, or no gradient_release"
            )


def _seen(grad: Tensor) -> _Seen:
    return grad, grad.data_ptr(), grad._version


def _label(optimizer: Optimizer, group: dict[str, Any], param: Tensor) -> str:
    index = next(i for i, p in enumerate(group["params"]) if p is param)
    return optimizer.label(group, index)
