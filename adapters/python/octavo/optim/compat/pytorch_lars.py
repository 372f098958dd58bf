"""bitsandbytes' PytorchLARS: the rule of its LARS with fp32 states, with other defaults and another order of
arguments.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor  # noqa: F401 typing.get_type_hints looks the hints up here

from ..classes import CLASSES

_Base: Any = CLASSES["LARS32bit"]
_FIRST = ("self", "params", "lr", "momentum", "dampening", "weight_decay", "nesterov", "max_unorm")
_known = inspect.signature(_Base.__init__).parameters
# The base's arguments: these are positional, the others keyword-only.
_SIGNATURE = inspect.Signature(
    [
        *(_known[name].replace(default=0.0) if name == "momentum" else _known[name] for name in _FIRST),
        *(p.replace(kind=p.KEYWORD_ONLY) for name, p in _known.items() if name not in _FIRST),
    ],
    return_annotation="None",
)


class PytorchLARS(_Base):  # type: ignore[misc]
    """LARS with fp32 states, without momentum by default; its sixth argument is `max_unorm`."""

    def __init__(self, *given: Any, **named: Any) -> None:
        try:
            placed = _SIGNATURE.bind_partial(self, *given).arguments
            del placed["self"]
            if twice := placed.keys() & named.keys():
                raise TypeError(f"got multiple values for argument {min(twice)!r}")
        except TypeError as error:
            raise TypeError(f"PytorchLARS.__init__() {error}") from None
        super().__init__(**{"momentum": 0.0, **placed, **named})


PytorchLARS.__init__.__signature__ = _SIGNATURE
PytorchLARS.__init__.__annotations__ = {
    name: parameter.annotation for name, parameter in _SIGNATURE.parameters.items() if name != "self"
}
