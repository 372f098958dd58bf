"""The transducer losses of octavo/transducer.h as operators of torch, which octavo.nn calls.

`torch.ops.octavo.transducer_loss` reads logits. `torch.ops.octavo.transducer_joint_loss` reads the inputs of
the joint network, and logits exist for one tile of cells at a time. Both have schemas, fake kernels and
derivatives, so a compiled graph can contain them. Logits are read in place: token and duration logits may be
parts of one tensor.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _abi
from ._engine import DTYPES, device_numbers, stream_of

# The schemas are given because torch 2.5 cannot infer all of them.
_LABELS = (
    "Tensor targets, Tensor logit_lengths, Tensor target_lengths, Tensor? seed, SymInt blank, "
    "SymInt[] durations, float sigma, float omega, "
)
_LOGITS = f"Tensor token_logits, Tensor? duration_logits, {_LABELS}str reduction"
_JOINT = (
    f"Tensor encoder, Tensor predictor, Tensor weight, Tensor? bias, {_LABELS}float dropout, "
    "SymInt tile_cells, str reduction"
)


def _operator(name: str, inputs: str, outputs: str = "(Tensor, Tensor)") -> Any:
    return torch.library.custom_op(
        f"octavo::{name}", mutates_args=(), device_types=("cpu", "cuda"), schema=f"({inputs}) -> {outputs}"
    )


def _readable(logits: Tensor) -> Tensor:
    """Returns logits with contiguous outputs; a tensor with an expanded dimension is copied."""
    strides = [stride for stride, size in zip(logits.stride(), logits.shape, strict=True) if size > 1]
    rows = logits.shape[-1] == 1 or logits.stride(-1) == 1
    return logits if rows and 0 not in strides else logits.contiguous()


def _indices(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.detach().to(device=device, dtype=torch.int64).contiguous()


class _Call:
    """The arguments that both losses have, in the form of the C ABI, and the memory that they point to."""

    def __init__(
        self, like: Tensor, sizes: Sequence[int], lengths_on: torch.device, given: Sequence[Any]
    ) -> None:
        """`given` has the operator's arguments after the tensors that need a gradient."""
        targets, *lengths, seed, blank, durations, sigma, omega = given[:8]
        batch, frames, positions, tokens = sizes
        targets = _indices(targets, like.device)
        logit_lengths, target_lengths = (_indices(each, lengths_on) for each in lengths)
        if targets.shape[1] < positions - 1:  # -1 is not a label: the core refuses it if a length reaches it
            targets = torch.nn.functional.pad(targets, (0, positions - 1 - targets.shape[1]), value=-1)
        values = (ctypes.c_int64 * len(durations))(*durations)
        kind, index = device_numbers(like.device)
        self.args = _abi.new(
            _abi.TransducerArgs,
            dtype=DTYPES[like.dtype],
            device_kind=kind,
            device_index=index,
            kind=0 if durations else 1,  # TDT, RNN-T
            reduction=_abi.parse("reduction", given[-1]),
            batch=batch,
            frames=frames,
            positions=positions,
            tokens=tokens,
            blank=blank,
            durations=ctypes.addressof(values),
            duration_count=len(durations),
            targets=targets.data_ptr(),
            target_stride=targets.stride(0),
            logit_lengths=logit_lengths.data_ptr(),
            target_lengths=target_lengths.data_ptr(),
            sigma=sigma,
            omega=omega,
            seed=0 if seed is None else int(seed),
            stream=stream_of(like.device),
            threads=torch.get_num_threads(),
        )
        self._device = like.device
        self._alive: list[Any] = [targets, logit_lengths, target_lengths, values]

    def bytes(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.uint8, device=self._device)

    def use(self, workspace: Tensor) -> Any:
        self.args.workspace, self.args.workspace_bytes = workspace.data_ptr(), workspace.numel()
        return ctypes.byref(self.args)


class _LogitsCall(_Call):
    def __init__(self, token_logits: Tensor, duration_logits: Tensor | None, *given: Any) -> None:
        tokens, durations = _readable(token_logits.detach()), given[5]
        apart = None if duration_logits is None else _readable(duration_logits.detach())
        count = tokens.shape[3] - (len(durations) if apart is None else 0)
        super().__init__(tokens, (*tokens.shape[:3], count), tokens.device, given)
        self.set_views(self.args, "logits", tokens, apart)
        self._alive += [tokens, apart]

    def set_views(self, struct: Any, name: str, tokens: Tensor, durations: Tensor | None) -> None:
        """Sets the addresses and strides of both parts. Without `durations` they follow the tokens."""
        setattr(struct, f"token_{name}", tokens.data_ptr())
        struct.token_strides[:] = tokens.stride()[:3]
        if durations is not None:
            setattr(struct, f"duration_{name}", durations.data_ptr())
            struct.duration_strides[:] = durations.stride()[:3]
        elif self.args.duration_count:
            start = tokens.data_ptr() + self.args.tokens * tokens.element_size()
            setattr(struct, f"duration_{name}", start)
            struct.duration_strides[:] = tokens.stride()[:3]


class _JointCall(_Call):
    def __init__(
        self, encoder: Tensor, predictor: Tensor, weight: Tensor, bias: Tensor | None, *given: Any
    ) -> None:
        durations, (dropout, tile_cells) = given[5], given[8:10]
        encoder = encoder.detach().contiguous()
        predictor, weight = (x.detach().to(encoder.dtype).contiguous() for x in (predictor, weight))
        bias = None if bias is None else bias.detach().float().contiguous()
        batch, frames, hidden = encoder.shape
        sizes = (batch, frames, predictor.shape[1], weight.shape[0] - len(durations))
        super().__init__(encoder, sizes, torch.device("cpu"), given)
        samples = torch.arange(batch, dtype=torch.int64, device=encoder.device) if dropout > 0 else None
        self._joint = _abi.new(
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
        self._alive += [encoder, predictor, weight, bias, samples]

    def allocate_scratch(self) -> tuple[int, Any]:
        """Returns the bytes of the workspace, which the gradient reads, and the joint network's arguments."""
        size, scratch = _abi.i64(), _abi.i64()
        joint, call = ctypes.byref(self._joint), _abi.library().octavo_transducer_joint_bytes
        _abi.check(call(ctypes.byref(self.args), joint, ctypes.byref(size), ctypes.byref(scratch)))
        self._alive.append(memory := self.bytes(scratch.value))
        self._joint.scratch, self._joint.scratch_bytes = memory.data_ptr(), scratch.value
        return size.value, joint


def _empty_loss(like: Tensor, reduction: str) -> Tensor:
    shape = like.shape[:1] if reduction == "none" else ()
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _fake_loss(like: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    size = torch.library.get_ctx().new_dynamic_size()  # it depends on the lengths of the clips
    return _empty_loss(like, rest[-1]), torch.empty(size, dtype=torch.uint8, device=like.device)


# --- With logits ----------------------------------------------------------------------------------


@_operator("transducer_loss", _LOGITS)
def transducer_loss(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Returns the loss in fp32, and the workspace that its gradient reads."""
    call, library = _LogitsCall(*inputs), _abi.library()
    size = library.octavo_transducer_workspace_bytes(ctypes.byref(call.args))
    _abi.check(int(size < 0))
    workspace, loss = call.bytes(size), _empty_loss(inputs[0], inputs[-1])
    _abi.check(library.octavo_transducer_loss(call.use(workspace), loss.data_ptr()))
    return loss, workspace


@_operator("transducer_gradient", f"Tensor grad_loss, Tensor workspace, {_LOGITS}")
def transducer_gradient(grad_loss: Tensor, workspace: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
    """Returns the gradients of both logits; the second is empty if durations follow the tokens."""
    call, upstream = _LogitsCall(*inputs), grad_loss.detach().to(torch.float32).contiguous()
    tokens, durations = _empty_gradients(grad_loss, workspace, *inputs)
    grads = _abi.new(_abi.TransducerGrads, grad_losses=upstream.data_ptr())
    call.set_views(grads, "grad", tokens, None if inputs[1] is None else durations)
    _abi.check(_abi.library().octavo_transducer_gradient(call.use(workspace), ctypes.byref(grads)))
    return tokens, durations


@transducer_gradient.register_fake
def _empty_gradients(_: Tensor, __: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
    like, shape = inputs[0], (0,) if inputs[1] is None else inputs[1].shape
    tokens = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    return tokens, torch.empty(shape, dtype=like.dtype, device=like.device)


def _save_logits(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1], *inputs[:6])
    ctx.numbers = inputs[6:]


def _logits_backward(ctx: Any, grad_loss: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    tokens, durations = transducer_gradient(grad_loss, *ctx.saved_tensors, *ctx.numbers)
    apart = ctx.saved_tensors[2] is not None
    return (tokens, durations if apart else None, *([None] * (4 + len(ctx.numbers))))


transducer_loss.register_fake(_fake_loss)
transducer_loss.register_autograd(_logits_backward, setup_context=_save_logits)


# --- With the joint network -----------------------------------------------------------------------


@_operator("transducer_joint_loss", _JOINT)
def transducer_joint_loss(*inputs: Any) -> tuple[Tensor, Tensor]:
    """Returns the loss in fp32, and the workspace that its gradient reads."""
    call = _JointCall(*inputs)
    size, joint = call.allocate_scratch()
    workspace, loss = call.bytes(size), _empty_loss(inputs[0], inputs[-1])
    _abi.check(_abi.library().octavo_transducer_joint_loss(call.use(workspace), joint, loss.data_ptr()))
    return loss, workspace


@_operator(
    "transducer_joint_gradient",
    f"Tensor grad_loss, Tensor workspace, bool[] wanted, {_JOINT}",
    "(Tensor, Tensor, Tensor, Tensor)",
)
def transducer_joint_gradient(
    grad_loss: Tensor, workspace: Tensor, wanted: Sequence[bool], *inputs: Any
) -> tuple[Tensor, ...]:
    """Returns the gradients of the first four inputs in fp32, empty if they are not wanted."""
    call, upstream = _JointCall(*inputs), grad_loss.detach().to(torch.float32).contiguous()
    out = _empty_joint_gradients(grad_loss, workspace, wanted, *inputs)
    grads = _abi.new(_abi.TransducerJointGrads, grad_losses=upstream.data_ptr())
    grads.encoder, grads.predictor, grads.weight, grads.bias = (
        grad.data_ptr() if want else None for grad, want in zip(out, wanted, strict=True)
    )
    _, joint = call.allocate_scratch()
    _abi.check(
        _abi.library().octavo_transducer_joint_gradient(call.use(workspace), joint, ctypes.byref(grads))
    )
    return out


@transducer_joint_gradient.register_fake
def _empty_joint_gradients(_: Tensor, __: Tensor, wanted: Sequence[bool], *inputs: Any) -> tuple[Tensor, ...]:
    some = zip(inputs[:4], wanted, strict=True)
    shapes = [x.shape if want and x is not None else (0,) for x, want in some]
    return tuple(torch.empty(shape, dtype=torch.float32, device=inputs[0].device) for shape in shapes)


def _save_joint(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1], *inputs[:8])
    ctx.numbers = inputs[8:]


def _joint_backward(ctx: Any, grad_loss: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    workspace, *inputs = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:4])
    grads = transducer_joint_gradient(grad_loss, workspace, wanted, *inputs, *ctx.numbers)
    # Each gradient has its tensor's dtype: an fp32 weight's keeps its precision next to bf16 activations.
    found = [g.to(x.dtype) if want else None for g, x, want in zip(grads, inputs, wanted, strict=False)]
    return (*found, *([None] * (4 + len(ctx.numbers))))


transducer_joint_loss.register_fake(_fake_loss)
transducer_joint_loss.register_autograd(_joint_backward, setup_context=_save_joint)
