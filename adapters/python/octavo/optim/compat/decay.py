"""The kind of weight decay: added to the gradient (coupled, L2), or applied to the parameter (decoupled)."""

from __future__ import annotations

from typing import Any

from ..._describe import Algorithm, algorithms
from ..._warn import warn

KEY = "decoupled_weight_decay"  # torch's key since 2.7, in groups of a formula with both kinds
_WAYS = ("is added to the gradient", "is applied to the parameter")


def twin_of(described: Algorithm) -> Algorithm | None:
    """Returns the algorithm of the same formula with the other kind of weight decay, or None."""
    same = (a for a in algorithms().values() if a.family == described.family)
    return next((a for a in same if a.decoupled != described.decoupled), None)


def saved_option(algorithm: str) -> dict[str, bool]:
    """Returns the option of a saved group, if one formula has both kinds."""
    described = algorithms()[algorithm]
    return {} if twin_of(described) is None else {KEY: described.decoupled}


def warn_if_changed(source: str, was: bool | None, target: Any, weight_decay: Any) -> bool:
    """Warns if a weight decay that is not 0 would change its kind; `was` is None if the kind is unknown."""
    described = algorithms().get(getattr(target, "algorithm", ""))
    if weight_decay == 0 or was is None or described is None or bool(was) == described.decoupled:
        return False
    warn(
        f"the weight decay {weight_decay} of {source} {_WAYS[bool(was)]}, but that of "
        f"{type(target).__name__} {_WAYS[described.decoupled]}"
    )
    return True
