"""The FP8 matmul with its gradient as a function of torch's autograd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .arenas import Lease
from .layer_cache import DGRAD, DY, FORWARD, NONE, WGRAD, Layer, X
from .sites import Site


@dataclass(slots=True)
class Call:
    """One use of a weight."""

    layer: Layer
    site: Site
    state: int  # the address of the site's states
    gather: bool  # casts raise the maxima of the step
    y_shape: tuple[int, ...]
    linear: bool  # w is given as [outputs, inputs]
    lease: Lease | None  # holds the states


Grads = tuple[Tensor | None, Tensor | None, Tensor | None, None]


class Matmul(torch.autograd.Function):
    """x is dense, [.., groups of tokens, inputs]. w is [groups, inputs, outputs] or [inputs, outputs], dense
    or with its last two dimensions transposed, or nn.Linear's. bias is [outputs] or None.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, call: Call) -> Tensor:
        layer = call.layer
        passes, stream = layer.passes, layer.stream()
        # Separate buffers: the transposed codes are saved for the backward pass, the others are not.
        x_codes, x_transposed = layer.empty_codes(X)
        w_codes = call.site.codes(layer, w, call.state, call.gather, stream)
        y = layer.empty_result(0, call.y_shape) if passes & FORWARD else None
        if passes & (FORWARD | WGRAD):
            layer.run(
                (x.data_ptr(), 0, 0),
                (0 if x_codes is None else x_codes.data_ptr(), w_codes.codes, 0),
                (0 if x_transposed is None else x_transposed.data_ptr(), 0, 0),
                NONE if y is None else (y.data_ptr(), 0, 0),
                call.state,
                call.gather,
                stream,
            )
        if y is None:
            y = _plain_forward(x, w, bias, call)
        elif bias is not None:
            y.add_(bias)
        need_dx, need_dw = ctx.needs_input_grad[:2]
        ctx.call, ctx.w_codes = call, w_codes
        ctx.x_shape, ctx.w_shape = tuple(x.shape), tuple(w.shape)  # plain tuples are faster in torch
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(
            (x_transposed if passes & WGRAD else x) if need_dw else None,
            w if need_dx and not passes & DGRAD else None,
        )
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Grads:
        # Gradients are enabled here if create_graph=True.
        return _without_second(ctx, dy) if torch.is_grad_enabled() else _backward(ctx, dy)


_apply = super(torch.autograd.Function, Matmul).apply


def apply(x: Tensor, w: Tensor, bias: Tensor | None, call: Call) -> Tensor:
    # Function.apply is slower, because it checks for transforms of torch.func, which it rejects.
    if torch._C._are_functorch_transforms_active():
        return Matmul.apply(x, w, bias, call)  # type: ignore[no-any-return]
    return _apply(x, w, bias, call)  # type: ignore[no-any-return]


def _backward(ctx: Any, dy: Tensor) -> Grads:
    call: Call = ctx.call
    layer = call.layer
    call.site.waits = False
    shape, stream = layer.shape, layer.stream()
    as_given = shape.transposed_weight or call.linear  # dw has the layout of w
    kept, weight = ctx.saved_tensors
    need_dx, need_dw, need_db, _ = ctx.needs_input_grad
    if dy.dtype is not layer.kinds.y or not dy.is_contiguous():
        dy = dy.to(layer.kinds.y).contiguous()
    dx = dw = db = sums = None
    if layer.passes & (DGRAD | WGRAD):
        _memory, codes, transposed = layer.empty_pair(DY)  # held while its addresses are used
        if need_db:
            sums = layer.empty_sums()
        if need_dx and codes:
            dx = layer.empty_result(1, ctx.x_shape)
        if need_dw and transposed:
            dw = layer.empty_result(2, ctx.w_shape if as_given else (*ctx.w_shape[:-2], *ctx.w_shape[:-3:-1]))
        layer.run(
            (0, 0, dy.data_ptr()),
            (0, 0, codes),
            (0 if dw is None else kept.data_ptr(), ctx.w_codes.transposed, transposed),
            (0, 0 if dx is None else dx.data_ptr(), 0 if dw is None else dw.data_ptr()),
            call.state,
            call.gather,
            stream,
            sums,
        )
    if need_dx and dx is None:
        dx = _plain_dgrad(dy, weight, call).view(ctx.x_shape)
    if need_dw:
        if dw is None:
            dw = _plain_wgrad(dy, kept, call).view(ctx.w_shape)
        elif not as_given:
            dw = dw.transpose(-1, -2)
    if need_db:
        if sums is None:
            sums = dy.view(-1, shape.outputs).sum(0, dtype=torch.float32)
        db = sums if ctx.bias_dtype is torch.float32 else sums.to(ctx.bias_dtype)
    return dx, dw, db, None


_NO_SECOND = torch._C._functions.DelayedError(
    b"octavo.fp8: a gradient of a gradient was asked for, and matmuls in FP8 have no second derivatives; "
    b"compute this part of the model inside octavo.fp8.autocast(enabled=False)",
    3,
)


def _without_second(ctx: Any, dy: Tensor) -> Grads:
    """Returns gradients whose own backward pass is an error. torch's once_differentiable returns gradients
    without a graph if dy needs no gradient, as in the last layer, so that second derivatives are lost.
    """
    with torch.no_grad():
        dx, dw, db, _ = _backward(ctx, dy)
    needed = [None if each is None else each.detach().requires_grad_() for each in (dx, dw, db)]
    return (*_NO_SECOND(*needed), None)


def _weight(w: Tensor, call: Call) -> Tensor:
    """Returns w as [groups, inputs, outputs] in the dtype of torch's matmul."""
    w = (w.t() if call.linear else w).to(call.layer.kinds.y)
    return w if w.dim() == 3 else w.unsqueeze(0)


def _grouped(tensor: Tensor, shape: Any, one: bool, columns: int) -> Tensor:
    return tensor.reshape(1 if one else shape.groups, shape.tokens, columns)


def _plain_forward(x: Tensor, w: Tensor, bias: Tensor | None, call: Call) -> Tensor:
    shape, dtype = call.layer.shape, call.layer.kinds.y
    weight = _weight(w, call)
    # The result has separate memory: a view must not be returned, see Layer.empty_result.
    y = torch.empty(call.y_shape, dtype=dtype, device=x.device)
    if shape.one_output:
        x = _grouped(x, shape, shape.one_input, shape.inputs).to(dtype)
        return torch.sum(torch.matmul(x, weight), 0, dtype=dtype, out=y)
    if w.dim() == 3:
        x = _grouped(x, shape, shape.one_input, shape.inputs).to(dtype)
        torch.bmm(x.expand(shape.groups, -1, -1), weight, out=y.view(shape.groups, -1, shape.outputs))
        return y
    x, flat = x.to(dtype).view(-1, shape.inputs), y.view(-1, shape.outputs)
    if bias is None:
        torch.mm(x, weight[0], out=flat)
    else:
        torch.addmm(bias.to(dtype), x, weight[0], out=flat)
    return y


def _plain_dgrad(dy: Tensor, w: Tensor, call: Call) -> Tensor:
    shape, kinds = call.layer.shape, call.layer.kinds
    dy = _grouped(dy, shape, shape.one_output, shape.outputs)
    dx = torch.matmul(dy, _weight(w, call).transpose(1, 2))
    return (dx.sum(0) if shape.one_input else dx).to(kinds.x)


def _plain_wgrad(dy: Tensor, x: Tensor, call: Call) -> Tensor:
    shape, kinds = call.layer.shape, call.layer.kinds
    dy = _grouped(dy, shape, shape.one_output, shape.outputs)
    x = _grouped(x, shape, shape.one_input, shape.inputs).to(kinds.y)
    if call.linear:
        return torch.matmul(dy.transpose(1, 2), x).to(kinds.w)
    return torch.matmul(x.transpose(1, 2), dy).to(kinds.w)
