"""The optimizer classes: torch's, torchao's and bitsandbytes' names, signatures and defaults. named.py has
those whose name says more than the algorithm.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, TypeVar

from torch import Tensor

from . import options
from .base import Optimizer, warn_paged

if TYPE_CHECKING:
    from typing_extensions import Unpack

_Init = TypeVar("_Init", bound=Callable[..., None])


class Options(TypedDict, total=False):
    """The keyword arguments of every class. docs/guides/python.md says what they do."""

    state: str | None
    block_size: int | None
    master: str | int
    min_quantized_size: int | None
    clip_grad_norm: float | None
    skip_nonfinite: bool
    gradient_release: bool
    maximize: bool
    capturable: bool
    fused: bool | None
    foreach: bool | None
    seed: int
    bf16_stochastic_round: bool
    is_paged: bool
    differentiable: bool


_DEFAULTS: Options = {
    "state": None,
    "block_size": None,
    "master": "native",
    "min_quantized_size": None,
    "clip_grad_norm": None,
    "skip_nonfinite": False,
    "gradient_release": False,
    "maximize": False,
    "capturable": False,
    "fused": None,
    "foreach": None,
    "seed": 0,
    "bf16_stochastic_round": False,
    "is_paged": False,
    "differentiable": False,
}


def _shows_options(init: _Init) -> _Init:
    """help() and inspect list the names of Options in the place of **given."""
    own = inspect.signature(init)
    named = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    for name, default in _DEFAULTS.items():
        hint = Options.__annotations__[name].__forward_arg__
        named.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        )
    init.__signature__ = own.replace(parameters=named)  # type: ignore[attr-defined]
    return init


class _Named(Optimizer):
    """What a class's name says beyond its algorithm."""

    _state: ClassVar[str | None] = None  # None: the `state` argument decides
    _paged: ClassVar[bool] = False

    def _start(self, params: Any, defaults: dict[str, Any], given: Any, *theirs: Any) -> None:
        """The rest of every __init__; `theirs` are bitsandbytes' optim_bits, args and min_8bit_size."""
        optim_bits, args, min_8bit_size = theirs
        options.take_args(args)
        options.take_removed(given)
        if unknown := [name for name in given if name not in _DEFAULTS]:
            raise TypeError(
                f"{type(self).__name__}.__init__() got an unexpected keyword argument {unknown[0]!r}"
            )
        named = self._options({**_DEFAULTS, **given}, optim_bits, min_8bit_size)
        own = named.pop("own")
        Optimizer.__init__(self, params, {**defaults, **named}, **own)

    def _options(self, given: dict[str, Any], optim_bits: Any, min_8bit_size: Any) -> dict[str, Any]:
        """Defaults of the parameter groups, and the optimizer's own options under "own"."""
        state = given["state"]
        from_bits = options.state_of_bits(optim_bits)
        if self._state is not None:
            if state not in (None, self._state):
                raise ValueError(f"{type(self).__name__} keeps {self._state} states, got state={state!r}")
            # bitsandbytes' 8-bit classes have always taken optim_bits=32, which says nothing there.
            if from_bits not in (None, "fp32", self._state):
                raise ValueError(
                    f"{type(self).__name__} keeps {self._state} states, got optim_bits={optim_bits}"
                )
            state = self._state
        elif state is None:
            state = from_bits or "fp32"
        elif from_bits not in (None, state):
            raise ValueError(f"got state={state!r} and optim_bits={optim_bits}, which differ")
        size = options.from_text(given["min_quantized_size"])
        if size is None:
            size = options.from_text(min_8bit_size)
        if self._paged or options.from_text(given["is_paged"]):
            warn_paged(type(self).__name__)
        stochastic = options.from_text(given["bf16_stochastic_round"])
        master = options.from_text(given["master"])
        if stochastic and master not in ("native", "stochastic"):
            raise ValueError(f"got bf16_stochastic_round=True and master={master!r}, which differ")
        if options.from_text(given["differentiable"]):
            raise ValueError("differentiable=True is not supported")
        return {
            "state": state,
            "block_size": given["block_size"],
            "master": "stochastic" if stochastic else master,
            "min_quantized_size": options.MIN_QUANTIZED_SIZE if size is None else size,
            "maximize": bool(options.from_text(given["maximize"])),
            "capturable": bool(options.from_text(given["capturable"])),
            "fused": options.from_text(given["fused"]),
            "foreach": options.from_text(given["foreach"]),
            "seed": int(options.from_text(given["seed"])),
            "clip_grad_norm": given["clip_grad_norm"],
            "own": {name: given[name] for name in ("skip_nonfinite", "gradient_release")},
        }


class _AdamBase(_Named):
    _weight_decay: ClassVar[float]

    @_shows_options
    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float | None = None,
        amsgrad: bool = False,
        optim_bits: int | None = None,
        args: Any = None,
        min_8bit_size: int | None = None,
        **given: Unpack[Options],
    ) -> None:
        more: dict[str, Any] = {**given}
        if options.from_text(more.pop("decoupled_weight_decay", False)) and self.algorithm == "adam":
            raise ValueError("decoupled_weight_decay=True is AdamW: use the class of that name")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": self._weight_decay if weight_decay is None else weight_decay,
            "amsgrad": bool(options.from_text(amsgrad)),
        }
        self._start(params, defaults, more, optim_bits, args, min_8bit_size)


class Adam(_AdamBase):
    """Adam; weight decay is added to the gradient, as in torch (bitsandbytes' Adam decays as AdamW does)."""

    algorithm = "adam"
    _weight_decay = 0.0


class AdamW(_AdamBase):
    """AdamW; weight decay is applied to the parameter, before the update."""

    algorithm = "adamw"
    _weight_decay = 1e-2


class SGD(_Named):
    """SGD as torch's: momentum, dampening, Nesterov; weight decay is added to the gradient."""

    algorithm = "sgd"

    @_shows_options
    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        optim_bits: int | None = None,
        args: Any = None,
        min_8bit_size: int | None = None,
        **given: Unpack[Options],
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": bool(options.from_text(nesterov)),
        }
        self._start(params, defaults, given, optim_bits, args, min_8bit_size)


class Lion(_Named):
    """Lion; weight decay is applied to the parameter."""

    algorithm = "lion"

    @_shows_options
    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0,
        optim_bits: int | None = None,
        args: Any = None,
        min_8bit_size: int | None = None,
        **given: Unpack[Options],
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        self._start(params, defaults, given, optim_bits, args, min_8bit_size)
