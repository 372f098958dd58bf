"""The recipe of FP8 matmuls, and the autocast context that sets it."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from types import TracebackType
from typing import NamedTuple

from .. import _abi

_SELECT = ("measure", "always")
_FALLBACK = ("error", "bf16")


class Numbers(NamedTuple):
    """The recipe in the C ABI's numbers."""

    format: int
    recipe: int
    length: int  # of the history; 0: the recipe has no states
    algo: int
    margin: int


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The options of FP8 matmuls, with Transformer Engine's names. docs/guides/fp8.md helps to choose.

    format: `hybrid` (x and w in E4M3, gradients in E5M2), `e4m3` or `e5m2`. recipe: `delayed` (a scale per
    tensor from the maxima of earlier steps), `current` (from the tensor itself), `rowwise` or `block`.
    amax_history_len, amax_compute_algo and margin apply to `delayed` only. select: `measure` times each
    matmul with and without FP8 once per shape and uses the faster one; `always` uses FP8. fallback: a device
    without FP8 is an `error`, or with `bf16` one warning, and torch's matmuls are used. reduce_amax: maxima
    are taken over all ranks, by one collective per step.
    """

    format: str = "hybrid"
    recipe: str = "delayed"
    amax_history_len: int = 1024
    amax_compute_algo: str = "max"
    margin: int = 0
    select: str = "measure"
    fallback: str = "error"
    reduce_amax: bool = True

    def __post_init__(self) -> None:
        for name, known in (("select", _SELECT), ("fallback", _FALLBACK)):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"Recipe: {name}: got {value!r}, expected one of {', '.join(known)}")
        for name in ("amax_history_len", "margin"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or abs(value) >= 2**31:
                raise ValueError(f"Recipe: {name}: got {value!r}, expected an integer")
        for name in ("format", "recipe", "amax_compute_algo"):
            if not isinstance(value := getattr(self, name), str):
                raise ValueError(f"Recipe: {name}: got {value!r}, expected a name")
        object.__setattr__(self, "numbers", _numbers(self))

    numbers: Numbers = dataclasses.field(init=False, repr=False, compare=False)


def _numbers(recipe: Recipe) -> Numbers:
    """Returns the recipe in numbers; ValueError with the core's message if the core does not accept it."""
    algo = _abi.parse("amax_compute_algo", recipe.amax_compute_algo)
    number = _abi.parse("fp8_recipe", recipe.recipe)
    found = Numbers(_abi.parse("fp8_format", recipe.format), number, 0, algo, recipe.margin)
    # The core checks these numbers when it updates scales: here those of 0 tensors.
    update = _abi.new(_abi.Fp8ScaleArgs, algo=algo, margin=recipe.margin, length=recipe.amax_history_len)
    if _abi.library().octavo_fp8_update_scales(ctypes.byref(update)) != 0:
        raise ValueError(_abi.last_error())
    return found._replace(length=recipe.amax_history_len if recipe.recipe == "delayed" else 0)


# For the process, not for a thread, because autograd recomputes forward passes in other threads.
_ambient: list[Recipe | None] = []


_known: dict[Recipe, Recipe] = {}


def _one(recipe: Recipe) -> Recipe:
    """Returns the first of equal recipes, because calls are prepared per object."""
    return _known.setdefault(recipe, recipe)


class autocast:  # noqa: N801  (as torch's)
    """Sets the recipe of calls of `matmul` and `Linear` without a recipe. With enabled=False all of them use
    torch's matmuls. It applies to all threads of the process.
    """

    def __init__(self, enabled: bool = True, recipe: Recipe | None = None) -> None:
        if recipe is not None and not isinstance(recipe, Recipe):
            raise TypeError(f"autocast: recipe: got {type(recipe).__name__}, expected an octavo.fp8.Recipe")
        self._recipe = (_default() if recipe is None else _one(recipe)) if enabled else None

    def __enter__(self) -> autocast:
        _ambient.append(self._recipe)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _ambient.pop()


def resolve(own: Recipe | None) -> Recipe | None:
    """Returns the recipe to use; None: torch's matmuls."""
    if _ambient:
        ambient = _ambient[-1]
        return None if ambient is None else own or ambient
    return own or _default()


@functools.cache
def _default() -> Recipe:
    return _one(Recipe())
