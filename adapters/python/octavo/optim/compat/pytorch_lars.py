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


def _signature() -> inspect.Signature:
    """Returns the base's signature: positional arguments first, the others by name."""
    known = inspect.signature(_Base.__init__).parameters
    places = [known[name].replace(default=0.0) if name == "momentum" else known[name] for name in _FIRST]
    rest = [p.replace(kind=p.KEYWORD_ONLY) for name, p in known.items() if name not in _FIRST]
    return inspect.Signature([*places, *rest], return_annotation="None")


class PytorchLARS(_Base):  # type: ignore[misc]
    """LARS with fp32 states, without momentum by default; its sixth argument is `max_unorm`."""

    def __init__(self, *given: Any, **named: Any) -> None:
        try:
            bound = _SIGNATURE.bind(self, *given, **named)
        except TypeError as error:
            raise TypeError(f"PytorchLARS.__init__() {error}") from None
        bound.arguments.setdefault("momentum", 0.0)
        values = dict(bound.arguments)
        del values["self"]
        super().__init__(**values)


_SIGNATURE = _signature()
PytorchLARS.__init__.__signature__ = _SIGNATURE
PytorchLARS.__init__.__annotations__ = {
    name: parameter.annotation for name, parameter in _SIGNATURE.parameters.items() if name != "self"
}
