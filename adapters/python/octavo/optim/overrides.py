"""Copies of a parameter have its overrides: models are copied by `copy.deepcopy(model)`.

torch.nn.Parameter.__deepcopy__ copies only the data. The first override wraps it in a method that also copies
the override; parameters without one are copied as before.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.nn import Parameter

OVERRIDE = "_octavo_override"  # attribute of a parameter


@functools.cache
def preserve_in_copies() -> None:
    torchs = Parameter.__deepcopy__

    @functools.wraps(torchs)
    def copied(self: Parameter, memo: dict[int, Any]) -> Any:
        result = torchs(self, memo)
        if OVERRIDE in vars(self):
            setattr(result, OVERRIDE, dict(vars(self)[OVERRIDE]))
        return result

    Parameter.__deepcopy__ = copied  # type: ignore[method-assign]
