"""Overrides go with copies of their parameter: `copy.deepcopy(model)` is how a model is copied.

torch.nn.Parameter.__deepcopy__ makes a parameter of the data and of nothing else. The first override puts a
method around it that also copies the override; parameters without one are copied as before.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.nn import Parameter

OVERRIDE = "_octavo_override"  # attribute of a parameter


@functools.cache
def keep_in_copies() -> None:
    torchs = Parameter.__deepcopy__

    @functools.wraps(torchs)
    def copied(self: Parameter, memo: dict[int, Any]) -> Any:
        result = torchs(self, memo)
        if OVERRIDE in vars(self):
            setattr(result, OVERRIDE, dict(vars(self)[OVERRIDE]))
        return result

    Parameter.__deepcopy__ = copied  # type: ignore[method-assign]
