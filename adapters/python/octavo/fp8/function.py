"""The product with its gradient: what is cast when, what is kept for the backward pass, and which of the
three products are torch's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .plans import DGRAD, DY, FORWARD, WGRAD, Plan, X
from .sites import Site


@dataclass(slots=True)
class Call:
    """One use of a weight."""

    plan: Plan
    site: Site
    state: int  # the address of the site's states
    gather: bool  # whether maxima count
    y_shape: tuple[int, ...]
    linear: bool  # w is given as [outputs, inputs]


class Product(torch.autograd.Function):
    """x: dense, [.., groups of tokens, inputs]; w: [groups, inputs, outputs] or [inputs, outputs], dense as
    it is or with its last two dimensions turned, or nn.Linear's; bias: [outputs] or None.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, call: Call) -> Tensor:
        plan, passes = call.plan, call.plan.passes
        x_codes, x_turned = plan.empty_codes(X)
        if x_codes is not None or x_turned is not None:
            plan.cast(X, x, x_codes, x_turned, call.state, call.gather)
        w_codes, w_turned = call.site.codes(plan, w, call.state)
        if passes & FORWARD:
            y = plan.product(0, x_codes, w_codes, call.y_shape)  # type: ignore[arg-type]
            if bias is not None:
                y.add_(bias)
        else:
            y = _plain_forward(x, w, bias, call)
        need_dx, need_dw = ctx.needs_input_grad[:2]
        ctx.call, ctx.w_turned = call, w_turned
        ctx.x_shape, ctx.w_shape = x.shape, w.shape
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.save_for_backward(
            (x_turned if passes & WGRAD else x) if need_dw else None,
            w if need_dx and not passes & DGRAD else None,
        )
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        call: Call = ctx.call
        plan, shape = call.plan, call.plan.shape
        kept, weight = ctx.saved_tensors
        need_dx, need_dw, need_db = ctx.needs_input_grad[:3]
        dy = dy.to(plan.kinds.y).contiguous()
        codes, turned = plan.empty_codes(DY)
        cast = codes is not None or turned is not None
        sums = None
        if cast:
            if need_db:
                sums = torch.empty(shape.outputs, dtype=torch.float32, device=dy.device)
            plan.cast(DY, dy, codes, turned, call.state, call.gather, sums)
        dx = dw = db = None
        if need_dx:
            if codes is not None:
                dx = plan.product(1, codes, ctx.w_turned, ctx.x_shape)
            else:
                dx = _plain_dgrad(dy, weight, call).view(ctx.x_shape)
        if need_dw:
            if turned is not None:
                as_given = shape.turned_weight or call.linear
                size = ctx.w_shape if as_given else (*ctx.w_shape[:-2], *ctx.w_shape[:-3:-1])
                dw = plan.product(2, turned, kept, size)
                dw = dw if as_given else dw.transpose(-1, -2)
            else:
                dw = _plain_wgrad(dy, kept, call).view(ctx.w_shape)
        if need_db:
            if sums is None:
                sums = dy.view(-1, shape.outputs).sum(0, dtype=torch.float32)
            db = sums.to(ctx.bias_dtype)
        return dx, dw, db, None


def _weight(w: Tensor, call: Call) -> Tensor:
    """[groups, inputs, outputs] in the type that torch multiplies."""
    w = (w.t() if call.linear else w).to(call.plan.kinds.y)
    return w if w.dim() == 3 else w.unsqueeze(0)


def _grouped(tensor: Tensor, shape: Any, one: bool, columns: int) -> Tensor:
    return tensor.reshape(1 if one else shape.groups, shape.tokens, columns)


def _plain_forward(x: Tensor, w: Tensor, bias: Tensor | None, call: Call) -> Tensor:
    shape, dtype = call.plan.shape, call.plan.kinds.y
    x = _grouped(x, shape, shape.one_input, shape.inputs).to(dtype)
    y = torch.matmul(x, _weight(w, call))
    y = (y.sum(0) if shape.one_output else y).reshape(call.y_shape)
    return y.clone() if bias is None else y + bias.to(dtype)  # not a view: see Plan.product


def _plain_dgrad(dy: Tensor, w: Tensor, call: Call) -> Tensor:
    shape, kinds = call.plan.shape, call.plan.kinds
    dy = _grouped(dy, shape, shape.one_output, shape.outputs)
    dx = torch.matmul(dy, _weight(w, call).transpose(1, 2))
    return (dx.sum(0) if shape.one_input else dx).to(kinds.x)


def _plain_wgrad(dy: Tensor, x: Tensor, call: Call) -> Tensor:
    shape, kinds = call.plan.shape, call.plan.kinds
    dy = _grouped(dy, shape, shape.one_output, shape.outputs)
    x = _grouped(x, shape, shape.one_input, shape.inputs).to(kinds.y)
    if call.linear:
        return torch.matmul(dy.transpose(1, 2), x).to(kinds.w)
    return torch.matmul(x.transpose(1, 2), dy).to(kinds.w)
