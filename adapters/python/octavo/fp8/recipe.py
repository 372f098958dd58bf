"""What a run chooses for its FP8 products, and where that holds."""

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
    """The recipe as the C ABI has it."""

    format: int
    recipe: int
    length: int  # of the history; 0: not delayed, no state
    algo: int
    margin: int


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Names and numbers are Transformer Engine's; docs/guides/fp8.md helps to choose.

    format: `hybrid` (x and w in E4M3, gradients in E5M2), `e4m3` or `e5m2`. recipe: `delayed` (a scale per
    tensor from the maxima of earlier steps), `current` (from the tensor itself), `rowwise` or `block`. The
    next three are those of `delayed`. select: `measure` times both kinds of each product once per shape and
    keeps the faster, `always` takes FP8. fallback: on a device without FP8 an `error`, or with `bf16` one
    warning and torch's products. reduce_amax: maxima are those of all ranks, by one collective per step.
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
    """ValueError, in the core's words, where the core does not take it."""
    algo = _abi.parse("amax_compute_algo", recipe.amax_compute_algo)
    number = _abi.parse("fp8_recipe", recipe.recipe)
    found = Numbers(_abi.parse("fp8_format", recipe.format), number, 0, algo, recipe.margin)
    # The core checks these numbers when scales are updated; here those of no tensor are.
    update = _abi.new(_abi.Fp8ScaleArgs, algo=algo, margin=recipe.margin, length=recipe.amax_history_len)
    if _abi.library().octavo_fp8_update_scales(ctypes.byref(update)) != 0:
        raise ValueError(_abi.last_error())
    return found._replace(length=recipe.amax_history_len if recipe.recipe == "delayed" else 0)


# Of the process, not of a thread: autograd makes a recomputed forward in a thread of its own.
_ambient: list[Recipe | None] = []


_known: dict[Recipe, Recipe] = {}


def _one(recipe: Recipe) -> Recipe:
    """The first of equal ones: calls look up what they need by the object."""
    return _known.setdefault(recipe, recipe)


class autocast:  # noqa: N801  (as torch's)
    """Sets the recipe of `matmul` and `Linear` that have none of their own; with enabled=False both are
    torch's products, whatever they have. It holds for all threads of the process.
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
    """The recipe that counts here; None: torch's products."""
    if _ambient:
        ambient = _ambient[-1]
        return None if ambient is None else own or ambient
    return own or _default()


@functools.cache
def _default() -> Recipe:
    return _one(Recipe())
