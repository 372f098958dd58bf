"""The transducer loss with its joint network (octavo/transducer.h) as operators of torch, which
octavo.nn.tdt_joint_loss and rnnt_joint_loss call. Logits exist for one tile of cells at a time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _abi
from ._transducer import Arguments, empty_loss, fake_workspace

_CPU = torch.device("cpu")
_INPUTS = (
    "Tensor encoder, Tensor predictor, Tensor weight, Tensor? bias, Tensor targets, Tensor logit_lengths, "
    "Tensor target_lengths, Tensor? seed, SymInt blank, SymInt[] durations, float sigma, float omega, "
    "float dropout, SymInt tile_cells, str reduction"
)
_GRADIENTS = "(Tensor, Tensor, Tensor, Tensor)"
_TENSORS = 4  # that can need a gradient: the first inputs


class _Call(Arguments):
    def __init__(
        self,
        tensors: tuple[Tensor, Tensor, Tensor, Tensor | None],
        labels: tuple[Tensor, Tensor, Tensor],
        blank: int,
        durations: Sequence[int],
        seed: Tensor | None,
        options: tuple[float, float, float, int, str],
    ) -> None:
        sigma, omega, dropout, tile_cells, reduction = options
        encoder = tensors[0].detach().contiguous()
        predictor, weight = (x.detach().to(encoder.dtype).contiguous() for x in tensors[1:3])  # type: ignore[union-attr]
        bias = None if tensors[3] is None else tensors[3].detach().float().contiguous()
        batch, frames, hidden = encoder.shape
        sizes = (batch, frames, predictor.shape[1], weight.shape[0] - len(durations))
        super().__init__(encoder, sizes, labels, _CPU, blank, durations, (sigma, omega, seed, reduction))
        samples = torch.arange(batch, dtype=torch.int64, device=encoder.device) if dropout > 0 else None
        self.joint = _abi.new(
            _abi.TransducerJoint,
            hidden=hidden,
            encoder=encoder.data_ptr(),
            predictor=predictor.data_ptr(),
            weight=weight.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            dropout=dropout,
            samples=None if samples is None else samples.data_ptr(),
            tile_cells=tile_cells,
        )
        self.device = encoder.device
        self._tensors = encoder, predictor, weight, bias, samples

    def bytes(self) -> tuple[int, int]:
        """Of the workspace, which is kept for the gradient, and of the scratch memory."""
        sizes = _abi.i64(), _abi.i64()
        call = _abi.library().octavo_transducer_joint_bytes
        _abi.check(call(ctypes.byref(self.args), ctypes.byref(self.joint), *map(ctypes.byref, sizes)))
        return sizes[0].value, sizes[1].value

    def use_scratch(self, count: int) -> Any:
        self._scratch = torch.empty(count, dtype=torch.uint8, device=self.device)
        self.joint.scratch, self.joint.scratch_bytes = self._scratch.data_ptr(), count
        return ctypes.byref(self.joint)


@torch.library.custom_op(
    "octavo::transducer_joint_loss",
    mutates_args=(),
    device_types=("cpu", "cuda"),
    schema=f"({_INPUTS}) -> (Tensor, Tensor)",
)
def transducer_joint_loss(
    encoder: Tensor,
    predictor: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    seed: Tensor | None,
    blank: int,
    durations: Sequence[int],
    sigma: float,
    omega: float,
    dropout: float,
    tile_cells: int,
    reduction: str,
) -> tuple[Tensor, Tensor]:
    """The loss in fp32, and the workspace that its gradient reads."""
    tensors, labels = (encoder, predictor, weight, bias), (targets, logit_lengths, target_lengths)
    options = (sigma, omega, dropout, tile_cells, reduction)
    call = _Call(tensors, labels, blank, durations, seed, options)
    size, scratch = call.bytes()
    workspace = torch.empty(size, dtype=torch.uint8, device=encoder.device)
    loss = empty_loss(encoder, reduction)
    library = _abi.library()
    args, joint = call.use(workspace), call.use_scratch(scratch)
    _abi.check(library.octavo_transducer_joint_loss(args, joint, loss.data_ptr()))
    return loss, workspace


@torch.library.custom_op(
    "octavo::transducer_joint_gradient",
    mutates_args=(),
    device_types=("cpu", "cuda"),
    schema=f"(Tensor grad_loss, Tensor workspace, bool[] wanted, {_INPUTS}) -> {_GRADIENTS}",
)
def transducer_joint_gradient(
    grad_loss: Tensor,
    workspace: Tensor,
    wanted: Sequence[bool],
    encoder: Tensor,
    predictor: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    seed: Tensor | None,
    blank: int,
    durations: Sequence[int],
    sigma: float,
    omega: float,
    dropout: float,
    tile_cells: int,
    reduction: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of the first four inputs in fp32; empty where not wanted."""
    tensors, labels = (encoder, predictor, weight, bias), (targets, logit_lengths, target_lengths)
    options = (sigma, omega, dropout, tile_cells, reduction)
    call = _Call(tensors, labels, blank, durations, seed, options)
    upstream = grad_loss.detach().to(torch.float32).contiguous()
    out = _empty_gradients(wanted, tensors)
    addresses = [grad.data_ptr() if want else None for grad, want in zip(out, wanted, strict=True)]
    grads = _abi.new(_abi.TransducerJointGrads, grad_losses=upstream.data_ptr())
    grads.encoder, grads.predictor, grads.weight, grads.bias = addresses
    args, joint = call.use(workspace), call.use_scratch(call.bytes()[1])
    _abi.check(_abi.library().octavo_transducer_joint_gradient(args, joint, ctypes.byref(grads)))
    return out


def _empty_gradients(
    wanted: Sequence[bool], tensors: Sequence[Tensor | None]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out = [
        torch.empty(
            x.shape if want and x is not None else (0,), dtype=torch.float32, device=tensors[0].device
        )  # type: ignore[union-attr]
        for x, want in zip(tensors, wanted, strict=True)
    ]
    return out[0], out[1], out[2], out[3]


@transducer_joint_loss.register_fake
def _fake_loss(encoder: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return empty_loss(encoder, rest[-1]), fake_workspace(encoder)


@transducer_joint_gradient.register_fake
def _fake_gradient(
    grad_loss: Tensor, workspace: Tensor, wanted: Sequence[bool], *inputs: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _empty_gradients(wanted, inputs[:_TENSORS])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1], *inputs[:8])
    ctx.numbers = inputs[8:]


def _backward(ctx: Any, grad_loss: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    workspace, *inputs = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:_TENSORS])
    grads = transducer_joint_gradient(grad_loss, workspace, wanted, *inputs, *ctx.numbers)
    # In each tensor's own type: a weight in fp32 keeps its gradient's precision beside bf16 activations.
    found = [g.to(x.dtype) if want else None for g, x, want in zip(grads, inputs, wanted, strict=False)]
    return (*found, *([None] * (4 + len(ctx.numbers))))


transducer_joint_loss.register_autograd(_backward, setup_context=_setup)
