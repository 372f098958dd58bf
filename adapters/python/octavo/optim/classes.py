"""Makes the optimizer classes from the descriptions of the algorithms: one for each algorithm, and those of
torchao and bitsandbytes whose names fix the format of the states or mean that they are paged.

No algorithm is named here. __init__.pyi, which scripts/make_stubs writes, has the same classes as text for
type checkers and editors.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor  # noqa: F401 typing.get_type_hints looks the hints up here

from .. import _describe
from .compat import compat_args
from .offload_options import Options
from .optimizer import Optimizer
from .options import use_documented_names

# Every class has these keyword arguments, with types and defaults. docs/guides/python.md explains them.
KEYWORDS: dict[str, tuple[str, Any]] = {
    "state": ("str | None", None),
    "block_size": ("int | None", None),
    "master": ("str | int", "native"),
    "min_quantized_size": ("int | None", None),
    "clip_grad_norm": ("float | None", None),
    "skip_nonfinite": ("bool", False),
    "gradient_release": ("bool", False),
    "offload": ("str", "none"),
    "offload_gradients": ("bool", False),
    "accumulate_in_fp32": ("bool", False),
    "offload_ratio": ("float", 1.0),
    "gpu_state_budget": ("int | None", None),
    "min_offload_size": ("int", 4096),
    "maximize": ("bool", False),
    "capturable": ("bool", False),
    "fused": ("bool | None", None),
    "foreach": ("bool | None", None),
    "seed": ("int", 0),
    "bf16_stochastic_round": ("bool", False),
    "is_paged": ("bool", False),
    "differentiable": ("bool", False),
}
# Options of the optimizer that its groups do not have.
_OF_THE_OPTIMIZER = ("skip_nonfinite", "gradient_release", *(f.name for f in dataclasses.fields(Options)))
# The suffix of a class name gives its format. Classes with these suffixes have a paged variant.
FORMATS = {"8bit": "8bit", "4bit": "4bit", "Fp8": "fp8", "Fp4": "fp4", "32bit": "fp32"}
_PAGED = ("", "8bit", "32bit")


def arguments_of(described: _describe.Algorithm) -> list[tuple[str, str, Any]]:
    """Returns name, type and default of the positional arguments of a class after `params`."""
    own: dict[str, tuple[str, str, Any]] = {}
    for option in described.options:
        if option.name in compat_args.UNSUPPORTED:
            before = compat_args.UNSUPPORTED[option.name]
            own.setdefault(before[0], before)
        if option.tuple:
            parts = (*own.get(option.tuple, ((), (), ()))[2], option.default)
            hint = f"tuple[{', '.join(['float'] * len(parts))}]"
            own[option.tuple] = (option.tuple, hint, parts)
        elif option.range == _describe.FLAG:
            own[option.name] = (option.name, "bool", bool(option.default))
        elif option.optional:
            own[option.name] = (option.name, "float | None", option.default or None)
        else:
            hint = "float | Tensor" if option.name == "lr" else "float"
            own[option.name] = (option.name, hint, option.default)
    behind = [own.pop(name) for name in compat_args.BEHIND_TAIL if name in own]
    return [*own.values(), *compat_args.TAIL, *behind]


def _signature_of(described: _describe.Algorithm) -> inspect.Signature:
    place, by_name = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("self", place), inspect.Parameter("params", place, annotation="Any")]
    for name, hint, default in arguments_of(described):
        parameters.append(inspect.Parameter(name, place, default=default, annotation=hint))
    for name, (hint, default) in KEYWORDS.items():
        parameters.append(inspect.Parameter(name, by_name, default=default, annotation=hint))
    return inspect.Signature(parameters, return_annotation="None")


def _initializer(described: _describe.Algorithm) -> Callable[..., None]:
    signature = _signature_of(described)
    names = [name for name, _, _ in arguments_of(described)]

    def initialize(self: Any, *given: Any, **named: Any) -> None:
        compat_args.pop_removed_args(named, signature.parameters)
        compat_args.pop_decoupled_flag(named, described)
        use_documented_names(named, signature.parameters)
        given, tail = compat_args.split_positional_tail(type(self), described, names, given)
        try:
            if twice := tail.keys() & named.keys():
                raise TypeError(f"got multiple values for argument {min(twice)!r}")
            bound = signature.bind(self, *given, **named, **tail)
        except TypeError as error:
            raise TypeError(f"{type(self).__name__}.__init__() {error}") from None
        bound.apply_defaults()
        _, params, *_ = bound.args
        values = {key: value for key, value in bound.arguments.items() if key not in ("self", "params")}
        defaults = compat_args.resolve_args(type(self), values, described)
        own = {key: defaults.pop(key) for key in _OF_THE_OPTIMIZER}
        Optimizer.__init__(self, params, defaults, **own)

    initialize.__name__ = "__init__"
    initialize.__signature__ = signature  # type: ignore[attr-defined]
    initialize.__annotations__ = {n: p.annotation for n, p in signature.parameters.items() if n != "self"}
    return initialize


class _Named(Optimizer):
    """A class name can fix the format of the states, and can mean that they are paged."""

    _state: ClassVar[str | None] = None  # None: the `state` argument decides
    _paged: ClassVar[bool] = False


def _class(name: str, base: type[_Named], doc: str, **content: Any) -> type[_Named]:
    # Users and pickles find the class in this module.
    return type(name, (base,), {"__module__": "octavo.optim", "__doc__": doc, **content})


def _classes_of(described: _describe.Algorithm) -> dict[str, type[_Named]]:
    title, paged = described.title, "in host memory where the parameters are on a GPU"
    way = "applied to the parameter" if described.decoupled else "added to the gradient"
    init = _initializer(described)
    base = _class(title, _Named, f"{title}; weight decay is {way}.", algorithm=described.name, __init__=init)
    found = {title: base}
    for suffix, state in FORMATS.items():
        doc = f"{title} with {state} states."
        found[title + suffix] = _class(title + suffix, base, doc, _state=state)
    for suffix in _PAGED:
        states = f"{FORMATS[suffix]} states" if suffix else "the states that `state` names"
        doc = f"{title} with {states}, {paged}."
        found[f"Paged{title}{suffix}"] = _class(
            f"Paged{title}{suffix}", found[title + suffix], doc, _paged=True
        )
    return found


CLASSES: dict[str, type[_Named]] = {
    name: made
    for described in _describe.algorithms().values()
    for name, made in _classes_of(described).items()
}
