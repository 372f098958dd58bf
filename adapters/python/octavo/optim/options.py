"""Arguments of the optimizers: the spellings of torch, torchao and bitsandbytes, and the checks of a
parameter group.

Values may be strings, because `optim_args` of transformers passes strings.
"""

from __future__ import annotations

import ast
import math
import numbers
import operator
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from .. import _codec
from .._describe import ANY, FLAG, FRACTION, NON_NEGATIVE, POSITIVE, Algorithm, Option, formats

MIN_QUANTIZED_SIZE = 4096
# Other spellings of an option, and its documented name.
SPELLINGS = {"max_grad_norm": "clip_grad_norm", "max_norm": "clip_grad_norm", "guard": "skip_nonfinite"}
MASTERS = ("native", "stochastic", 24, 32)
RATE_SLACK = 1e-12  # schedulers that end at 0 (LinearLR) may reach -1e-19, which counts as 0
_RANGES: dict[int, tuple[Callable[[float], bool], str]] = {
    ANY: (math.isfinite, "a finite number"),
    NON_NEGATIVE: (lambda x: 0 <= x < math.inf, "a finite number of at least 0"),
    POSITIVE: (lambda x: 0 < x < math.inf, "a finite number above 0"),
    FRACTION: (lambda x: 0 <= x < 1, "a number of at least 0 and below 1"),
}
_LABELS = {"lr": "learning rate", "eps": "epsilon value"}  # torch's messages have these names


def from_text(value: Any) -> Any:
    """Converts a number, tuple or truth value that is written as a string; returns other values unchanged."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def use_documented_names(given: dict[str, Any], names: Iterable[str]) -> None:
    """Renames options that LibTorch, the C++ API or other trainers spell differently, in place. `names` has
    the documented names that are possible here. ValueError if two spellings have different values.
    """
    for spelling in [key for key in given if SPELLINGS.get(key) in names and key not in names]:
        name, value = SPELLINGS[spelling], from_text(given.pop(spelling))
        if name == "clip_grad_norm" and value == 0 and not isinstance(value, bool):
            value = None  # what 0 means with these spellings
        if name in given and from_text(given[name]) != value:
            raise ValueError(f"got {name}={given[name]!r} and {spelling}={value!r}, which differ")
        given[name] = value


def is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def state_of_bits(optim_bits: Any) -> str | None:
    """Returns the state format of bitsandbytes' optim_bits."""
    bits = from_text(optim_bits)
    if bits is None:
        return None
    states = {32: "fp32", 8: "8bit", 4: "4bit", 16: "bf16"}
    if bits not in states:
        raise ValueError(f"Invalid optim_bits: {optim_bits!r}, expected 32, 16, 8 or 4")
    return states[bits]


def _number(value: Any, label: str, option: Option) -> Any:
    """Returns the value if the option's description allows it; `label` begins the error message."""
    value = from_text(value)
    if value is None and option.optional:
        return None
    allowed, expected = _RANGES[option.range]
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"Tensor {option.name} must be 1-element")
        if value.device.type != "cpu":  # reading it would wait for the device
            return value
    number = float(value) if isinstance(value, Tensor) or is_number(value) else math.nan
    if not allowed(0.0 if option.name == "lr" and -RATE_SLACK <= number < 0 else number):
        raise ValueError(f"Invalid {label}: {value}, expected {expected}")
    # numpy's numbers as Python's, which torch.load(weights_only=True) reads.
    return value if isinstance(value, (Tensor, int)) else number


def check_group(described: Algorithm, group: dict[str, Any]) -> None:
    """Parses strings, translates bitsandbytes' keys and checks all options of a group, in place."""
    if group.get("optim_bits") is not None:
        group["state"] = state_of_bits(group["optim_bits"])
    group.pop("optim_bits", None)
    if (size := from_text(group.pop("min_8bit_size", None))) is not None:
        group["min_quantized_size"] = size
    check_numbers(described, group)
    check_format(group)
    taken = [name for name, f in formats().items() if not described.excluded_formats >> f.number & 1]
    if group["state"] not in taken:
        raise ValueError(f"{described.title} does not take state={group['state']!r}, expected one of {taken}")


def check_numbers(described: Algorithm, group: dict[str, Any]) -> None:
    """Checks the options that may change between steps, in place."""
    parts: dict[str, list[Option]] = {}
    for option in described.options:
        if option.tuple:
            parts.setdefault(option.tuple, []).append(option)
        elif option.range == FLAG:
            group[option.name] = bool(from_text(group[option.name]))
        else:
            label = _LABELS.get(option.name, f"{option.name} value")
            group[option.name] = _number(group[option.name], label, option)
    for name, members in parts.items():
        values = from_text(group[name])
        if isinstance(values, str) or not hasattr(values, "__len__"):
            raise ValueError(f"Invalid {name}: {values!r}, expected {len(members)} numbers")
        label = f"{name.removesuffix('s')} parameter at index"
        checked = [
            _number(v, f"{label} {i}", o) for i, (v, o) in enumerate(zip(values, members, strict=False))
        ]
        if len(values) != len(members):
            raise ValueError(f"Invalid {name}: {values!r}, expected {len(members)} numbers")
        group[name] = tuple(checked)
    # The core checks this too, but only at the step. This is torch's message.
    if group.get("nesterov") and not (group.get("momentum", 1) > 0 and group.get("dampening", 0) == 0):
        raise ValueError("Nesterov momentum requires a momentum and zero dampening")
    group["clip_grad_norm"] = checked_clip(group.get("clip_grad_norm"))
    group["seed"] = _checked_seed(group["seed"])


def _checked_seed(given: Any) -> int:
    """Returns the seed of stochastic rounding."""
    seed = from_text(given)
    if isinstance(seed, float) and seed.is_integer():
        seed = int(seed)
    try:
        number = -1 if isinstance(seed, bool) else operator.index(seed)
    except TypeError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise ValueError(f"Invalid seed: {given!r}, expected an integer of at least 0 and below 2**64")
    return number


def checked_clip(given: Any) -> float | None:
    """Returns the limit of the norm of all gradients."""
    clip = from_text(given)
    if clip is not None and not (is_number(clip) and 0 < clip < math.inf):
        raise ValueError(f"Invalid clip_grad_norm: {given}, expected a positive number or None")
    return None if clip is None else float(clip)


def check_format(group: dict[str, Any]) -> None:
    """Checks the options of how states are stored, in place."""
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
