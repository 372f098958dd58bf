"""The optimizer classes: torch's, torchao's and bitsandbytes' names, signatures and defaults."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor

from . import options
from .base import Optimizer, warn_paged


class _Named(Optimizer):
    """What a class's name says beyond its algorithm."""

    _state: ClassVar[str | None] = None  # None: the `state` argument decides
    _paged: ClassVar[bool] = False

    def _start(self, params: Any, defaults: dict[str, Any], given: dict[str, Any], *theirs: Any) -> None:
        """The rest of every __init__; `theirs` are bitsandbytes' optim_bits, args and min_8bit_size."""
        optim_bits, args, min_8bit_size = theirs
        options.take_args(args)
        named = self._options(given, optim_bits, min_8bit_size)
        own = named.pop("own")
        Optimizer.__init__(self, params, {**defaults, **named}, **own)

    def _options(self, given: dict[str, Any], optim_bits: Any, min_8bit_size: Any) -> dict[str, Any]:
        """Defaults of the parameter groups, and the optimizer's own options under "own"."""
        options.take_removed(given)
        state = given.pop("state", None)
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
        size = options.from_text(given.pop("min_quantized_size", None))
        if size is None:
            size = options.from_text(min_8bit_size)
        if self._paged or options.from_text(given.pop("is_paged", False)):
            warn_paged(type(self).__name__)
        stochastic = options.from_text(given.pop("bf16_stochastic_round", False))
        master = options.from_text(given.pop("master", "native"))
        if stochastic and master not in ("native", "stochastic"):
            raise ValueError(f"got bf16_stochastic_round=True and master={master!r}, which differ")
        own = {name: given.pop(name) for name in ("skip_nonfinite", "gradient_release") if name in given}
        if options.from_text(given.pop("differentiable", False)):
            raise ValueError("differentiable=True is not supported")
        out = {
            "state": state,
            "block_size": given.pop("block_size", None),
            "master": "stochastic" if stochastic else master,
            "min_quantized_size": options.MIN_QUANTIZED_SIZE if size is None else size,
            "maximize": bool(options.from_text(given.pop("maximize", False))),
            "capturable": bool(options.from_text(given.pop("capturable", False))),
            "fused": options.from_text(given.pop("fused", None)),
            "foreach": options.from_text(given.pop("foreach", None)),
            "seed": int(options.from_text(given.pop("seed", 0))),
            "clip_grad_norm": given.pop("clip_grad_norm", None),
            "own": own,
        }
        if given:
            raise TypeError(
                f"{type(self).__name__}.__init__() got an unexpected keyword argument {next(iter(given))!r}"
            )
        return out


class _AdamBase(_Named):
    _weight_decay: ClassVar[float]

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
        **given: Any,
    ) -> None:
        if options.from_text(given.pop("decoupled_weight_decay", False)) and self.algorithm == "adam":
            raise ValueError("decoupled_weight_decay=True is AdamW: use the class of that name")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": self._weight_decay if weight_decay is None else weight_decay,
            "amsgrad": bool(options.from_text(amsgrad)),
        }
        self._start(params, defaults, given, optim_bits, args, min_8bit_size)


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
        **given: Any,
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

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0,
        optim_bits: int | None = None,
        args: Any = None,
        min_8bit_size: int | None = None,
        **given: Any,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
        self._start(params, defaults, given, optim_bits, args, min_8bit_size)


# Every further name is a class with its format fixed, its states paged, or both.
_SUFFIXES = {"8bit": "8bit", "4bit": "4bit", "Fp8": "fp8", "32bit": "fp32"}
_BASES: tuple[type[_Named], ...] = (Adam, AdamW, SGD, Lion)


def _derive(base: type[_Named], name: str, state: str | None, paged: bool) -> type[_Named]:
    kept = f"{state} states" if state else "the states that `state` names"
    said = f"{base.__name__} with {kept}" + (", kept on the device until offload exists." if paged else ".")
    attributes = {"_state": state, "_paged": paged, "__doc__": said, "__module__": "octavo.optim"}
    return type(name, (base,), attributes)


def _derived() -> dict[str, type[_Named]]:
    out: dict[str, type[_Named]] = {}
    for base in _BASES:
        for suffix, state in _SUFFIXES.items():
            name = base.__name__ + suffix
            out[name] = _derive(base, name, state, paged=False)
        if base is SGD:
            continue
        for suffix, state in (("", None), ("8bit", "8bit"), ("32bit", "fp32")):
            name = f"Paged{base.__name__}{suffix}"
            out[name] = _derive(base, name, state, paged=True)
    return out


DERIVED = _derived()
