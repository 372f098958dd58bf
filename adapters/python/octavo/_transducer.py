"""The transducer loss of octavo/transducer.h as operators of torch: `torch.ops.octavo.transducer_loss` and
its gradient, which octavo.nn.tdt_loss and rnnt_loss call.

They have schemas, fake kernels and a derivative, so they can stand inside a compiled graph. Tensors are read
where they lie: token and duration logits may be parts of one tensor.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import _abi
from ._engine import DTYPES, device_numbers, stream_of

_KINDS = {True: 0, False: 1}  # with durations: TDT, else RNN-T
# Written out: torch 2.5 does not infer all of it.
_INPUTS = (
    "Tensor token_logits, Tensor? duration_logits, Tensor targets, Tensor logit_lengths, "
    "Tensor target_lengths, Tensor? seed, SymInt blank, SymInt[] durations, float sigma, float omega, "
    "str reduction"
)


def _readable(logits: Tensor) -> Tensor:
    """Rows of contiguous outputs; an expanded dimension is copied."""
    strides = [stride for stride, size in zip(logits.stride(), logits.shape, strict=True) if size > 1]
    rows = logits.shape[-1] == 1 or logits.stride(-1) == 1
    return logits if rows and 0 not in strides else logits.contiguous()


def _indices(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.detach().to(device=device, dtype=torch.int64).contiguous()


class Arguments:
    """The arguments that both entries have, in the form of the C ABI, and what they point to."""

    def __init__(
        self,
        like: Tensor,
        sizes: tuple[int, int, int, int],
        labels: tuple[Tensor, Tensor, Tensor],
        lengths_on: torch.device,
        blank: int,
        durations: Sequence[int],
        options: tuple[float, float, Tensor | None, str],
    ) -> None:
        batch, frames, positions, tokens = sizes
        targets = _indices(labels[0], like.device)
        logit_lengths, target_lengths = (_indices(lengths, lengths_on) for lengths in labels[1:])
        if targets.shape[1] < positions - 1:  # no label: the core refuses it where a length reaches it
            targets = torch.nn.functional.pad(targets, (0, positions - 1 - targets.shape[1]), value=-1)
        values = (ctypes.c_int64 * len(durations))(*durations)
        sigma, omega, seed, reduction = options
        kind, index = device_numbers(like.device)
        self.args = _abi.new(
            _abi.TransducerArgs,
            dtype=DTYPES[like.dtype],
            device_kind=kind,
            device_index=index,
            kind=_KINDS[bool(durations)],
            reduction=_abi.parse("reduction", reduction),
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
        self._alive: tuple[Any, ...] = (targets, logit_lengths, target_lengths, values)

    def use(self, workspace: Tensor) -> Any:
        self.args.workspace, self.args.workspace_bytes = workspace.data_ptr(), workspace.numel()
        return ctypes.byref(self.args)


class _Call(Arguments):
    """A call on logits."""

    def __init__(
        self,
        logits: tuple[Tensor, Tensor | None],
        labels: tuple[Tensor, Tensor, Tensor],
        blank: int,
        durations: Sequence[int],
        options: tuple[float, float, Tensor | None, str],
    ) -> None:
        tokens, apart = _readable(logits[0].detach()), logits[1]
        lasts = None if apart is None else _readable(apart.detach())
        count = tokens.shape[3] if lasts is not None or not durations else tokens.shape[3] - len(durations)
        batch, frames, positions = tokens.shape[:3]
        sizes = (batch, frames, positions, count)
        super().__init__(tokens, sizes, labels, tokens.device, blank, durations, options)
        self.set_views(self.args, "logits", tokens, lasts)
        self._logits = tokens, lasts

    def set_views(self, struct: Any, name: str, tokens: Tensor, durations: Tensor | None) -> None:
        """The addresses and strides of both parts; without `durations` they follow the tokens."""
        setattr(struct, f"token_{name}", tokens.data_ptr())
        struct.token_strides[:] = tokens.stride()[:3]
        if durations is not None:
            setattr(struct, f"duration_{name}", durations.data_ptr())
            struct.duration_strides[:] = durations.stride()[:3]
        elif self.args.duration_count:
            start = tokens.data_ptr() + self.args.tokens * tokens.element_size()
            setattr(struct, f"duration_{name}", start)
            struct.duration_strides[:] = tokens.stride()[:3]


def empty_loss(like: Tensor, reduction: str) -> Tensor:
    shape = like.shape[:1] if reduction == "none" else ()
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def fake_workspace(like: Tensor) -> Tensor:
    size = torch.library.get_ctx().new_dynamic_size()  # by the lengths of the clips
    return torch.empty(size, dtype=torch.uint8, device=like.device)


@torch.library.custom_op(
    "octavo::transducer_loss",
    mutates_args=(),
    device_types=("cpu", "cuda"),
    schema=f"({_INPUTS}) -> (Tensor, Tensor)",
)
def transducer_loss(
    token_logits: Tensor,
    duration_logits: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    seed: Tensor | None,
    blank: int,
    durations: Sequence[int],
    sigma: float,
    omega: float,
    reduction: str,
) -> tuple[Tensor, Tensor]:
    """The loss in fp32, and the workspace that its gradient reads."""
    labels = (targets, logit_lengths, target_lengths)
    options = (sigma, omega, seed, reduction)
    call = _Call((token_logits, duration_logits), labels, blank, durations, options)
    library, device = _abi.library(), token_logits.device
    size = library.octavo_transducer_workspace_bytes(ctypes.byref(call.args))
    _abi.check(int(size < 0))
    workspace = torch.empty(size, dtype=torch.uint8, device=device)
    loss = empty_loss(token_logits, reduction)
    _abi.check(library.octavo_transducer_loss(call.use(workspace), loss.data_ptr()))
    return loss, workspace


@torch.library.custom_op(
    "octavo::transducer_gradient",
    mutates_args=(),
    device_types=("cpu", "cuda"),
    schema=f"(Tensor grad_loss, Tensor workspace, {_INPUTS}) -> (Tensor, Tensor)",
)
def transducer_gradient(
    grad_loss: Tensor,
    workspace: Tensor,
    token_logits: Tensor,
    duration_logits: Tensor | None,
    targets: Tensor,
    logit_lengths: Tensor,
    target_lengths: Tensor,
    seed: Tensor | None,
    blank: int,
    durations: Sequence[int],
    sigma: float,
    omega: float,
    reduction: str,
) -> tuple[Tensor, Tensor]:
    """The gradients of both logits; the second is empty where durations follow the tokens in the first."""
    labels = (targets, logit_lengths, target_lengths)
    options = (sigma, omega, seed, reduction)
    call = _Call((token_logits, duration_logits), labels, blank, durations, options)
    upstream = grad_loss.detach().to(torch.float32).contiguous()
    tokens, lasts = _empty_gradients(token_logits, duration_logits)
    grads = _abi.new(_abi.TransducerGrads, grad_losses=upstream.data_ptr())
    call.set_views(grads, "grad", tokens, None if duration_logits is None else lasts)
    _abi.check(_abi.library().octavo_transducer_gradient(call.use(workspace), ctypes.byref(grads)))
    return tokens, lasts


def _empty_gradients(token_logits: Tensor, duration_logits: Tensor | None) -> tuple[Tensor, Tensor]:
    tokens = torch.empty(token_logits.shape, dtype=token_logits.dtype, device=token_logits.device)
    shape = (0,) if duration_logits is None else duration_logits.shape
    return tokens, torch.empty(shape, dtype=token_logits.dtype, device=token_logits.device)


@transducer_loss.register_fake
def _fake_loss(token_logits: Tensor, duration_logits: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    return empty_loss(token_logits, rest[-1]), fake_workspace(token_logits)


@transducer_gradient.register_fake
def _fake_gradient(
    grad_loss: Tensor, workspace: Tensor, token_logits: Tensor, duration_logits: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor]:
    return _empty_gradients(token_logits, duration_logits)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1], *inputs[:6])
    ctx.numbers = inputs[6:]


def _backward(ctx: Any, grad_loss: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    tokens, durations = transducer_gradient(grad_loss, *ctx.saved_tensors, *ctx.numbers)
    apart = ctx.saved_tensors[2] is not None
    return (tokens, durations if apart else None, *([None] * (4 + len(ctx.numbers))))


transducer_loss.register_autograd(_backward, setup_context=_setup)
