"""Arguments of the optimizers: torch's, torchao's and bitsandbytes' spellings, and the checks of a parameter
group.

Values may be strings, as `optim_args` of transformers passes them.
"""

from __future__ import annotations

import ast
import numbers
import warnings
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .. import _codec

MIN_QUANTIZED_SIZE = 4096
MASTERS = ("native", "stochastic", 24, 32)
RATE_SLACK = 1e-12  # schedulers that end at 0 (LinearLR) come to lie at -1e-19; that is 0

# Accepted for the sake of old calls; what is done instead.
_REMOVED = {
    "percentile_clipping": "it was removed from bitsandbytes; clip_grad_norm clips the gradients' norm",
    "block_wise": "states are always block-wise",
    "max_unorm": "it belongs to LAMB and LARS",
    "skip_zeros": "elements with a zero gradient decay as torch's do",
}
_NEUTRAL = {"percentile_clipping": 100, "block_wise": True, "max_unorm": 0.0, "skip_zeros": False}


def from_text(value: Any) -> Any:
    """A number, tuple or truth value that is written as a string is converted; anything else is returned
    unchanged.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def take_removed(options: dict[str, Any]) -> None:
    """Removes arguments without effect from `options`, and warns where a value asks for something."""
    for name in list(options):
        if name in _REMOVED and from_text(options.pop(name)) not in (None, _NEUTRAL[name]):
            warnings.warn(f"{name} has no effect: {_REMOVED[name]}", stacklevel=4)


def take_args(args: Any) -> None:
    """bitsandbytes' `args` is an object of options that nothing reads. A number there is another argument:
    its SGD8bit, Lion8bit and their like have no optim_bits before `args`, ours have.
    """
    if isinstance(args, (int, float)):
        raise TypeError(f"args is {args!r}, expected None or an object: give min_8bit_size by name")


def state_of_bits(optim_bits: Any) -> str | None:
    """bitsandbytes' optim_bits as a state format."""
    bits = from_text(optim_bits)
    if bits is None:
        return None
    states = {32: "fp32", 8: "8bit", 4: "4bit", 16: "bf16"}
    if bits not in states:
        raise ValueError(f"Invalid optim_bits: {optim_bits!r}, expected 32, 16, 8 or 4")
    return states[bits]


def _number(
    group: Mapping[str, Any], key: str, label: str, low: float = 0.0, high: float = float("inf")
) -> Any:
    value = from_text(group[key])
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"Tensor {key} must be 1-element")
        if value.device.type == "cpu" and not low <= float(value) < high:  # elsewhere it would be a wait
            raise ValueError(f"Invalid {label}: {value}")
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not low <= value < high:
        raise ValueError(f"Invalid {label}: {value}")
    return _plain(value)


def _plain(value: Any) -> Any:
    """numpy's numbers as Python's, which torch.load(weights_only=True) reads."""
    return float(value) if isinstance(value, numbers.Real) and type(value) is not int else value


def check_group(group: dict[str, Any]) -> None:
    """Reads strings, takes bitsandbytes' keys over and checks every option of a parameter group, in place."""
    if group.get("optim_bits") is not None:
        group["state"] = state_of_bits(group["optim_bits"])
    group.pop("optim_bits", None)
    if (size := from_text(group.pop("min_8bit_size", None))) is not None:
        group["min_quantized_size"] = size
    check_numbers(group)
    check_clip(group)
    check_format(group)


def check_numbers(group: dict[str, Any]) -> None:
    """The options that may change between steps, in place."""
    group["lr"] = _number(group, "lr", "learning rate", low=-RATE_SLACK)
    group["weight_decay"] = _number(group, "weight_decay", "weight_decay value")
    if "eps" in group:
        group["eps"] = _number(group, "eps", "epsilon value")
    if "dampening" in group:  # SGD's; others' groups may have a momentum that means nothing here
        group["momentum"] = _number(group, "momentum", "momentum value")
        group["dampening"] = _number(group, "dampening", "dampening value", low=-float("inf"))
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
    if "betas" in group:
        betas = from_text(group["betas"])
        if isinstance(betas, str) or not hasattr(betas, "__len__") or len(betas) != 2:
            raise ValueError(f"Invalid betas: {betas!r}, expected two numbers")
        for index, beta in enumerate(betas):
            if (
                isinstance(beta, bool)
                or not isinstance(beta, (numbers.Real, Tensor))
                or not 0.0 <= beta < 1.0
            ):
                raise ValueError(f"Invalid beta parameter at index {index}: {beta}")
        group["betas"] = tuple(map(_plain, betas))


def check_clip(group: dict[str, Any]) -> None:
    """The limit of the norm of all gradients, in place."""
    given = group.get("clip_grad_norm")
    clip = from_text(given)
    is_number = isinstance(clip, numbers.Real) and not isinstance(clip, bool)
    if clip is not None and not (is_number and 0 < clip < float("inf")):
        raise ValueError(f"Invalid clip_grad_norm: {given}, expected a positive number or None")
    group["clip_grad_norm"] = None if clip is None else float(clip)


def check_format(group: dict[str, Any]) -> None:
    """The options that say how states are kept, in place."""
    _codec.check_state(group["state"])
    block_size = from_text(group["block_size"])
    if block_size is not None:
        _codec.check_block_size(block_size)
    group["block_size"] = block_size
    group["master"] = from_text(group["master"])
    if group["master"] not in MASTERS:
        raise ValueError(f"Invalid master: {group['master']!r}, expected 'native', 'stochastic', 24 or 32")
    size = from_text(group["min_quantized_size"])
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ValueError(f"Invalid min_quantized_size: {size!r}, expected a number of elements")
    group["min_quantized_size"] = size
