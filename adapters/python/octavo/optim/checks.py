"""Checks of parameters and gradients, and the warning for 16-bit parameters that will lose updates."""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter

from .._describe import algorithms
from .._engine import DTYPES, refuse_amd
from .._shards import is_sharded, local
from .._warn import warn
from .states.state import kind_of

if TYPE_CHECKING:
    from .optimizer import Optimizer

# True: parameters may lack memory. octavo.plan reads the states of such an optimizer and never steps it.
planned: contextvars.ContextVar[bool] = contextvars.ContextVar("planned", default=False)


def check_param(param: Tensor) -> None:
    """Raises RuntimeError for a parameter that cannot be optimized, with torch's message if there is one."""
    if param.is_complex():
        raise RuntimeError("complex parameters are not supported; view them as real with torch.view_as_real")
    if local(param).layout != torch.strided:
        raise RuntimeError(f"{param.layout} parameters are not supported, expected a dense tensor")
    if not planned.get():
        refuse_amd(param.device)
    _check_memory(param, "parameters")
    if param.dtype not in DTYPES:
        raise RuntimeError(
            f"{param.dtype} parameters are not supported, expected float32, bfloat16 or float16"
        )
    if param.device.type not in ("cpu", "cuda"):
        raise RuntimeError(f"parameters on {param.device} are not supported, expected cpu or cuda")


def is_ignored(param: Tensor, group: Mapping[str, Any]) -> bool:
    """Returns whether the parameter is frozen and could not be stepped: quantized weights of bitsandbytes or
    torchao, for example. It is checked when it gets a gradient.
    """
    if param.requires_grad:
        return False
    try:
        check_param(param)
        kind_of(param, group)
    except (ValueError, RuntimeError, TypeError):
        return True
    return False


def _check_memory(tensor: Tensor, what: str) -> None:
    """Raises RuntimeError for a tensor subclass without its own memory: a native step cannot reach inner
    tensors.
    """
    here = local(tensor)
    if planned.get():
        return
    if type(here) in (Tensor, Parameter) or here.device.type not in ("cpu", "cuda") or not here.numel():
        return
    try:
        reached = here.data_ptr() != 0
    except RuntimeError:
        reached = False
    if not reached:
        raise RuntimeError(
            f"{what} of the tensor subclass {type(here).__name__}, which has no memory of its own, are not "
            "supported; give the optimizer the plain tensor inside, or use torch.optim"
        )


def check_grad(param: Tensor, grad: Tensor) -> None:
    if grad.is_sparse or grad.layout != torch.strided:
        raise RuntimeError(
            "sparse gradients are not supported; use sparse=False, or an optimizer of torch that takes them"
        )
    if is_sharded(param) != is_sharded(grad):
        raise RuntimeError("the parameter and its gradient must both be DTensors, or neither")
    if is_sharded(param) and param.device_mesh != grad.device_mesh:  # type: ignore[attr-defined]
        raise RuntimeError(
            f"the gradient is on {grad.device_mesh}, expected the parameter's {param.device_mesh}"  # type: ignore[attr-defined]
        )
    _check_memory(grad, "gradients")
    mine, its = local(param), local(grad)
    if its.device != mine.device:
        raise RuntimeError(f"its gradient is on {its.device}, expected {mine.device}, where the parameter is")
    if its.shape != mine.shape:
        raise RuntimeError(f"its gradient has shape {tuple(its.shape)}, expected {tuple(mine.shape)}")
    if its.dtype not in DTYPES:
        raise RuntimeError(f"{its.dtype} gradients are not supported, expected float32, bfloat16 or float16")


_warned_of_lost_updates = False
# A smaller update, relative to the weight, never changes it: half the distance to the next number.
_LOST = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}


def warn_of_lost_updates(optimizer: Optimizer, group: Mapping[str, Any]) -> None:
    """Warns once that 16-bit parameters without further bits lose small updates. The updates of most
    algorithms are about as large as the learning rate.
    """
    global _warned_of_lost_updates
    if planned.get():
        return  # the warning belongs to the training run
    rate = group["lr"]
    if isinstance(rate, Tensor):
        # Reading it on another device would wait for the device.
        rate = float(rate) if rate.device.type == "cpu" else 0.0
    for index, param in enumerate(group["params"]):
        lost = _LOST.get(param.dtype)
        if _warned_of_lost_updates or lost is None or not param.requires_grad:
            continue
        if kind_of(param, group).master != "native":
            continue
        known = algorithms()[optimizer.algorithm].update_is_rate and rate > 0
        if known and rate >= lost:
            continue  # weights of up to 1 get their updates
        _warned_of_lost_updates = True
        above = f"; at lr={rate:g} that is every update of a weight above {rate / lost:.2g}" if known else ""
        fix = (
            "master=24 (or 32, or 'stochastic') keeps them"
            if param.dtype == torch.bfloat16
            else "train fp32 parameters under torch.autocast, or bfloat16 ones with master=24"
        )
        warn(
            f"{optimizer.label(group, index)} is {param.dtype}, and updates "
            f"below 1/{1 / lost:.0f} of a weight are rounded away{above}; {fix}"
        )
