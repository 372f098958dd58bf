"""`matmul`: the shapes that it accepts, and the choice between FP8 and torch for each call."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .._engine import DTYPES
from . import choice_timing
from .arenas import ArenaKey
from .devices import capturing, say_once, usable
from .function import Call, apply
from .layer_cache import DGRAD, FORWARD, WGRAD, Kinds, Layer, Shape, cached_layer, why_not
from .owners import end_pending
from .recipe import Numbers, Recipe, resolve
from .sites import Site, site_of
from .steps import clock, in_backward


def matmul(x: Tensor, w: Tensor, recipe: Recipe | None = None, *, sum_groups: bool = False) -> Tensor:
    """x @ w in FP8, with its gradient. w is a parameter, or a view of one such as `weight.t()`.

    x is [.., inputs] and w [inputs, outputs]. Or there is a matmul for each of several groups (heads,
    experts): x is [.., groups, tokens, inputs] and w [groups, inputs, outputs]; all groups share an x with
    one group or with two dimensions. With sum_groups the result is summed over groups: [.., tokens, outputs].
    Results have the dtype of x, or of torch.autocast if it is on; gradients have the dtype of their tensor.
    The default recipe is that of `autocast`, else Recipe().
    """
    if w.dim() == 2:
        if sum_groups:
            raise ValueError("matmul: sum_groups: got True, but w has two dimensions: there are no groups")
        return multiply(x, w, None, recipe, site_of(w))
    if w.dim() != 3:
        raise ValueError(
            f"matmul: w: got shape {tuple(w.shape)}, expected [inputs, outputs] or [groups, inputs, outputs]"
        )
    return _grouped(x, w, recipe, sum_groups)


def _grouped(x: Tensor, w: Tensor, recipe: Recipe | None, sum_groups: bool) -> Tensor:
    groups = w.shape[0]
    if x.dim() < 2 or (x.dim() > 2 and x.shape[-3] not in (1, groups)):
        raise ValueError(
            f"matmul: x: got shape {tuple(x.shape)}, expected [.., {groups}, tokens, {w.shape[1]}] for w of "
            f"{tuple(w.shape)}; all groups share an x of one group"
        )
    if x.dim() == 2:
        return multiply(x, w, None, recipe, site_of(w), one_input=True, one_output=sum_groups)
    lead, tokens, one = x.shape[:-3], x.shape[-2], x.shape[-3] == 1
    x = x.reshape(-1, x.shape[-1]) if one else x.movedim(-3, 0).reshape(groups, -1, x.shape[-1])
    y = multiply(x, w, None, recipe, site_of(w), one_input=one, one_output=sum_groups)
    if sum_groups:
        return y.view(*lead, tokens, w.shape[2])
    return y.view(groups, *lead, tokens, w.shape[2]).movedim(0, -3)


def multiply(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    own: Recipe | None,
    site: Site,
    one_input: bool = False,
    one_output: bool = False,
    linear: bool = False,
) -> Tensor:
    """x [.., inputs] with w [inputs, outputs] (linear: [outputs, inputs]), or x [groups, tokens, inputs]
    (one_input: [tokens, inputs]) with w [groups, inputs, outputs].
    """
    if torch.compiler.is_compiling():
        return _uncompiled(x, w, bias, own, site, one_input, one_output, linear)
    again = in_backward()
    if clock.pending and not again:
        end_pending()
    # Activation checkpointing may recompute a forward pass outside of its `autocast`.
    recipe = site.recipe if again and site.used else resolve(own)
    site.recipe, site.used = recipe, True
    device = x.device
    place = device.type
    dtype = torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else x.dtype
    grads = torch.is_grad_enabled()
    needs_dx, needs_dw = grads and x.requires_grad, grads and w.requires_grad
    site.waits = needs_dx or needs_dw
    # Everything that the call depends on except addresses and values.
    key = (
        x.shape,
        x.dtype,
        device,
        dtype,
        w.shape,
        w.stride(),
        w.dtype,
        one_input,
        one_output,
        linear,
        needs_dx,
        needs_dw,
        id(recipe),
    )
    made = site.made.get(key)
    if made is None:
        made = _prepare(x, w, recipe, site, Use(dtype, one_input, one_output, linear, needs_dx, needs_dw))
        if made.keep:
            if len(site.made) > 256:  # sequence lengths that do not repeat
                site.made.clear()
            site.made[key] = made
    if made.layer is None or recipe is None:
        return _plain(x, w, bias, one_output, linear)
    if made.copied:
        w = w.contiguous()
    call = Call(made.layer, site, site.state(made.states), grads, made.y_shape, linear, site.lease)
    return apply(x if x.is_contiguous() else x.contiguous(), w, bias, call)


_uncompiled = torch._disable_dynamo(multiply)


def _plain(x: Tensor, w: Tensor, bias: Tensor | None, one_output: bool, linear: bool) -> Tensor:
    if w.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type):
        w = w.to(x.dtype)  # the result has the dtype of the FP8 matmul
        bias = None if bias is None else bias.to(x.dtype)
    if linear:
        return torch.nn.functional.linear(x, w, bias)
    y = torch.matmul(x, w)
    return y.sum(0, dtype=y.dtype) if one_output else y  # torch.autocast sums to float32 by default


class Use(NamedTuple):
    """How a weight is used in one call."""

    dtype: torch.dtype  # of the result
    one_input: bool
    one_output: bool
    linear: bool
    needs_dx: bool
    needs_dw: bool


class Made(NamedTuple):
    """A prepared call. It holds its recipe, so that no other recipe gets the same id."""

    recipe: Recipe | None
    layer: Layer | None = None  # None: torch's matmul is used
    states: ArenaKey | None = None  # the arena of the states that the layer needs
    y_shape: tuple[int, ...] = ()
    copied: bool = False  # the weight is copied, because casts do not support its strides
    keep: bool = True  # valid for later calls of this kind


def _prepare(x: Tensor, w: Tensor, recipe: Recipe | None, site: Site, use: Use) -> Made:
    outputs, inputs = w.shape if use.linear else w.shape[:-3:-1]
    _check(x, w, inputs)
    plain = Made(recipe)
    if x.numel() == 0 or w.numel() == 0 or recipe is None or not usable(x.device, recipe):
        return plain
    groups = w.shape[0] if w.dim() == 3 else 1
    tokens = x.numel() // inputs // (1 if use.one_input else groups)
    # The weight is [.., outputs, inputs] in memory unless it is transposed.
    linear = use.linear and w.is_contiguous()
    transposed = not linear and not w.transpose(-1, -2).is_contiguous()
    copied = transposed and not w.is_contiguous()
    if use.linear and not linear:
        raise ValueError(f"Linear: weight: got strides {w.stride()}, expected a dense weight")
    shared = groups > 1
    shape = Shape(
        groups, tokens, inputs, outputs, use.one_input and shared, use.one_output and shared, transposed
    )
    numbers, computed = recipe.numbers, w.grad_fn is not None and not w._is_view()
    if numbers.length and computed:
        numbers = _without_history(numbers)
    kinds = Kinds(x.device, x.dtype, w.dtype, use.dtype)
    if why := why_not(kinds, numbers, shape):
        say_once(f"fp8: a matmul of {inputs} x {outputs} stays as it is: {why}")
        return plain
    passes, keep = FORWARD | DGRAD | WGRAD, True
    if recipe.select == "measure" and x.device.type == "cuda":
        dense = w.t() if use.linear else w.contiguous() if copied else w
        passes, keep = _decided(kinds, recipe, shape, x, dense, site)
    # A pass that is not computed needs no codes.
    passes &= FORWARD | (DGRAD if use.needs_dx else 0) | (WGRAD if use.needs_dw else 0)
    if not passes:
        return plain._replace(keep=keep)
    if w.dim() == 2:
        y_shape: tuple[int, ...] = (*x.shape[:-1], outputs)
    else:
        y_shape = (tokens, outputs) if use.one_output else (groups, tokens, outputs)
    states = None
    if numbers.length:
        states = ArenaKey(x.device, numbers.length, numbers.algo, numbers.margin, recipe.reduce_amax)
    return Made(recipe, cached_layer(kinds, numbers, shape, passes), states, y_shape, copied, keep)


def _check(x: Tensor, w: Tensor, inputs: int) -> None:
    if x.dim() == 0 or x.shape[-1] != inputs:
        raise ValueError(
            f"matmul: x: got shape {tuple(x.shape)}, expected its last dimension to be {inputs}, the inputs "
            f"of w, which is {tuple(w.shape)}"
        )
    if x.device != w.device:
        raise ValueError(f"matmul: w: got a tensor on {w.device}, expected {x.device}, where x is")
    for name, tensor in (("x", x), ("w", w)):
        if hasattr(tensor, "device_mesh"):
            raise TypeError(
                f"matmul: {name}: got a DTensor, expected a plain tensor: FSDP2 gives such to its modules; "
                "with tensor parallelism pass to_local()"
            )
        if tensor.dtype not in DTYPES:
            raise TypeError(f"matmul: {name}: got {tensor.dtype}, expected float32, bfloat16 or float16")


def _without_history(numbers: Numbers) -> Numbers:
    """Returns the recipe of a computed weight, which has new memory each time, and so no history."""
    say_once(
        "fp8: a weight that is computed has no history for the recipe `delayed`: it gets scales as in "
        "`current`. Pass the parameter itself: float32 weights are cast directly"
    )
    return Recipe(recipe="current").numbers._replace(format=numbers.format)


def _decided(
    kinds: Kinds, recipe: Recipe, shape: Shape, x: Tensor, w: Tensor, site: Site
) -> tuple[int, bool]:
    """Returns the passes in FP8, and whether the decision is final."""
    key = choice_timing.key_of(kinds, recipe, shape)
    passes = site.decisions.get(key)
    if passes is None:
        if capturing(x.device):
            return FORWARD | DGRAD | WGRAD, False
        rows = x.contiguous().view(1 if shape.one_input else shape.groups, shape.tokens, shape.inputs)
        columns = w.reshape(shape.groups, shape.inputs, shape.outputs)
        passes = choice_timing.decide(kinds, recipe, shape, rows, columns)
        site.decisions[key] = passes
    return passes, True
