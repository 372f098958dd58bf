"""Arguments of torch, torchao and bitsandbytes that no algorithm's description has: what each of them means
here, or that it has no effect.
"""

from __future__ import annotations

from typing import Any

from ... import _describe
from ..._warn import warn
from ..options import MIN_QUANTIZED_SIZE, from_text, is_number, state_of_bits
from . import decay

# Positional arguments that bitsandbytes has after its options: name, type, default.
TAIL = (("optim_bits", "int | None", None), ("args", "Any", None), ("min_8bit_size", "int | None", None))
# In bitsandbytes, 8bit and 32bit classes of these algorithms have no `optim_bits` argument.
_NO_BITS = ("sgd", "lion", "rmsprop", "lamb", "lars", "ademamix")
# In bitsandbytes, classes of these algorithms have no `args` argument.
_NO_ARGS = ("ademamix",)
# Options after this tail in its signatures, or in this library only.
BEHIND_TAIL = ("max_unorm", "trust_ratio", "trust_coefficient")
# An argument that bitsandbytes' class has before an option and does not support.
UNSUPPORTED = {"adam_w_mode": ("amsgrad", "bool", False)}
# bitsandbytes' 8-bit classes of these algorithms have optim_bits=32, which has no effect.
_TAKES_32 = ("adam", "adamw")
# Arguments of old calls: the value without effect, and the explanation for other values.
_REMOVED = {
    "percentile_clipping": (
        100,
        "it was removed from bitsandbytes; clip_grad_norm clips the gradients' norm",
    ),
    "block_wise": (True, "states are always block-wise"),
    "max_unorm": (0.0, "it belongs to the optimizers that measure the norms of their updates"),
    "skip_zeros": (False, "elements with a zero gradient decay as torch's do"),
}


def pop_removed_args(given: dict[str, Any], known: Any) -> None:
    """Removes arguments without effect from `given`, and warns if their value asks for something."""
    for name in [name for name in given if name in _REMOVED and name not in known]:
        neutral, instead = _REMOVED[name]
        if from_text(given.pop(name)) not in (None, neutral):
            warn(f"{name} has no effect: {instead}")


def pop_decoupled_flag(given: dict[str, Any], described: _describe.Algorithm) -> None:
    """Removes torch's argument that turns an algorithm into another one. ValueError if it does."""
    other = decay.twin_of(described)
    if other is not None and from_text(given.pop(decay.KEY, described.decoupled)) != described.decoupled:
        raise ValueError(f"{decay.KEY}={other.decoupled} is {other.title}: use the class of that name")


def split_positional_tail(
    cls: Any, described: _describe.Algorithm, names: list[str], given: tuple[Any, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Splits positional arguments in bitsandbytes' order into those before the tail and the tail by name.
    Nothing is split if they fit this library's order, `names`.
    """
    begin = names.index(TAIL[0][0]) + 1  # of `given`, which begins with the parameters
    tail = given[begin:]
    behind = [name for name in names[begin + len(TAIL) - 1 :] if name in BEHIND_TAIL]
    theirs = [name for name, _, _ in TAIL] + (behind or ["is_paged"])
    if described.name in _NO_ARGS:
        theirs.remove("args")
    if described.name in _NO_BITS and cls._state is not None:
        theirs.remove("optim_bits")
    if not tail or _fits(tail, names[begin - 1 :]) or not _fits(tail, theirs):
        return given, {}
    return given[:begin], dict(zip(theirs, tail, strict=False))


def _fits(values: tuple[Any, ...], names: list[str]) -> bool:
    """Returns whether these positional values can be the arguments of these names."""
    if len(values) > len(names):
        return False
    for name, value in zip(names, map(from_text, values), strict=False):
        number = is_number(value)
        fine = {
            "optim_bits": value is None or (number and value in (4, 8, 16, 32)),
            "args": value is None or not isinstance(value, (int, float)),
            "min_8bit_size": value is None or number,
            "is_paged": isinstance(value, bool),
        }
        if not fine.get(name, True):
            return False
    return True


def resolve_args(cls: Any, given: dict[str, Any], described: _describe.Algorithm) -> dict[str, Any]:
    """Turns all arguments except `params`, by name, into the defaults of the parameter groups. `cls._state`
    is the format in the class's name, or None.
    """
    name = cls.__name__
    for unsupported, _, neutral in (UNSUPPORTED[o.name] for o in described.options if o.name in UNSUPPORTED):
        if from_text(given.pop(unsupported)) != neutral:
            raise ValueError(f"{name} does not support {unsupported}=True")
    # bitsandbytes' `args` is an object of options without effect. A number is meant for another argument:
    # many of its classes have no optim_bits before `args`.
    if isinstance(args := given.pop("args"), (int, float)):
        raise TypeError(f"args is {args!r}, expected None or an object: give min_8bit_size by name")
    given["state"] = _state(cls, given["state"], given.pop("optim_bits"), described)
    size, theirs = from_text(given["min_quantized_size"]), from_text(given.pop("min_8bit_size"))
    size = theirs if size is None else size
    given["min_quantized_size"] = MIN_QUANTIZED_SIZE if size is None else size
    if (from_text(given.pop("is_paged")) or cls._paged) and given["offload"] == "none":
        given["offload"] = "auto"
    given["master"] = from_text(given["master"])
    if from_text(given.pop("bf16_stochastic_round")):
        if given["master"] not in ("native", "stochastic"):
            raise ValueError(f"got bf16_stochastic_round=True and master={given['master']!r}, which differ")
        given["master"] = "stochastic"
    if from_text(given.pop("differentiable")):
        raise ValueError("differentiable=True is not supported")
    for flag in ("maximize", "capturable"):
        given[flag] = bool(from_text(given[flag]))
    for key in ("fused", "foreach"):
        given[key] = from_text(given[key])
    return given


def _state(cls: Any, state: str | None, optim_bits: Any, described: _describe.Algorithm) -> str:
    from_bits, fixed = state_of_bits(optim_bits), cls._state
    if fixed is None:
        if state is not None and from_bits not in (None, state):
            raise ValueError(f"got state={state!r} and optim_bits={optim_bits}, which differ")
        return state or from_bits or "fp32"
    if state not in (None, fixed):
        raise ValueError(f"{cls.__name__} keeps {fixed} states, got state={state!r}")
    ignored = "fp32" if described.name in _TAKES_32 else None
    if from_bits not in (None, ignored, fixed):
        raise ValueError(f"{cls.__name__} keeps {fixed} states, got optim_bits={optim_bits}")
    return str(fixed)
