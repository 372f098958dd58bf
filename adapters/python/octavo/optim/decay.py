"""Where weight decay goes: added to the gradient (coupled, L2), or applied to the parameter (decoupled)."""

from __future__ import annotations

import warnings
from typing import Any

DECOUPLED = {"adam": False, "sgd": False, "adamw": True, "lion": True}
KEY = "decoupled_weight_decay"  # torch's, in the groups of its Adam and AdamW since 2.7
_WAYS = ("is added to the gradient", "is applied to the parameter")


def saved_option(algorithm: str) -> dict[str, bool]:
    """What a saved group says of it, where one algorithm has both kinds."""
    return {KEY: DECOUPLED[algorithm]} if algorithm in ("adam", "adamw") else {}


def warn_if_changed(source: str, was: bool | None, target: Any, weight_decay: Any) -> bool:
    """Warns where a weight decay that is not 0 would change its kind; `was` is None where nobody knows it."""
    now = DECOUPLED.get(getattr(target, "algorithm", ""))
    if weight_decay == 0 or was is None or now is None or bool(was) == now:
        return False
    warnings.warn(
        f"the weight decay {weight_decay} of {source} {_WAYS[bool(was)]}, but that of "
        f"{type(target).__name__} {_WAYS[now]}",
        stacklevel=4,
    )
    return True
