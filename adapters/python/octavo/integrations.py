"""Use of this library's optimizers in frameworks.

`swap_optimizer` replaces an optimizer that a framework has made, with its learning rate schedule and its
states; `optimizer_named` finds a class by transformers' name; `register_with_nemo` registers classes in NeMo.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch.optim.lr_scheduler import LRScheduler

from . import optim
from ._describe import FLAG, algorithms
from ._warn import warn
from .optim.compat import decay
from .optim.options import MIN_QUANTIZED_SIZE

_New = TypeVar("_New", bound=torch.optim.Optimizer)

# Options of torch's groups that select torch's implementation. The new class has its own.
_TORCHS_OWN = frozenset(("foreach", "fused", "differentiable", decay.KEY))
# Options of how states are stored. A group keeps those that differ from the old optimizer's defaults.
_FORMAT = ("state", "block_size", "master", "min_quantized_size", "seed")
_HOOKED = ("step", "state_dict", "load_state_dict")
_HOOKS = [f"_optimizer_{what}_{when}_hooks" for what in _HOOKED for when in ("pre", "post")]


def swap_optimizer(
    optimizer: torch.optim.Optimizer, cls: type[_New], *, scheduler: Any = None, **options: Any
) -> _New:
    """Returns a `cls` that replaces `optimizer`: it has the groups with their options, the states and the
    hooks.

    `options` are arguments of `cls`; options that groups have too (`lr`, `weight_decay`) replace the groups'.
    States are converted as in `cls.load_state_dict`; clear `optimizer.state` first to begin with new states.
    `scheduler` is the schedule of `optimizer`, or a list of schedules, or a dict or object with a "scheduler"
    (as in Lightning); it continues with the new optimizer. Do not use the old optimizer afterwards; its
    states are freed with it. An error changes nothing.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"expected a torch.optim.Optimizer to replace, got {type(optimizer).__name__}")
    if isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        raise TypeError(
            f"{type(optimizer).__name__} wraps another optimizer: swap that one before it is wrapped (with "
            "Accelerate, before prepare)"
        )
    scheduled = any(hasattr(optimizer.step, mark) for mark in ("_wrapped_by_lr_sched", "_with_counter"))
    pointing = _schedulers_of(optimizer, scheduler)
    new = cls(_groups(optimizer, options), **options)
    _compare_decay(optimizer, new)
    for name in new.defaults.keys() - options.keys() - set(_FORMAT) - _TORCHS_OWN:
        new.defaults[name] = optimizer.defaults.get(name, new.defaults[name])
    if any(optimizer.state.values()):
        asked = [dict(group) for group in new.param_groups]
        new.load_state_dict(optimizer.state_dict())
        for group, kept in zip(new.param_groups, asked, strict=True):
            group.clear()
            group.update(kept)  # without the old optimizer's options, which were loaded with its states
    for name in _HOOKS:
        hooks = getattr(optimizer, name)
        hooks.update(getattr(new, name))
        setattr(new, name, hooks)  # the dict itself, because handles remove from it
    if scheduled:
        _Attached(new)
        for name in ("_opt_called", "_step_count"):
            if hasattr(optimizer, name):
                setattr(new, name, getattr(optimizer, name))
        if not pointing:
            warn(
                f"the replaced {type(optimizer).__name__} has a learning rate scheduler, which still changes "
                "its rates and not those of the new optimizer: pass it as scheduler="
            )
    for found in pointing:
        found.optimizer = new
    return new


class _Attached(LRScheduler):
    """Makes torch count an optimizer's steps, which schedulers check, and changes nothing else."""

    def get_lr(self) -> list[Any]:
        return [group["lr"] for group in self.optimizer.param_groups]


def _groups(old: torch.optim.Optimizer, options: Mapping[str, Any]) -> list[dict[str, Any]]:
    groups = []
    for group in old.param_groups:
        kept = {k: v for k, v in group.items() if k not in _TORCHS_OWN and k not in options}
        for key in _FORMAT:
            if key in kept and key in old.defaults and kept[key] == old.defaults[key]:
                del kept[key]
        groups.append({**kept, "params": list(group["params"])})
    return groups


def _compare_decay(old: torch.optim.Optimizer, new: torch.optim.Optimizer) -> None:
    """Warns if one weight decay is added to the gradient and the other is applied to the parameter."""
    # Groups have no such option before torch 2.7, so the class decides.
    titles = {getattr(torch.optim, a.title, None): a.decoupled for a in algorithms().values()}
    for before, after in zip(old.param_groups, new.param_groups, strict=True):
        was = before.get(decay.KEY, titles.get(type(old)))
        if decay.warn_if_changed(type(old).__name__, was, new, after["weight_decay"]):
            return


def _schedulers_of(optimizer: torch.optim.Optimizer, scheduler: Any) -> list[Any]:
    """Returns the given schedulers and those inside them. ValueError if one belongs to another optimizer."""
    found = list(_nested(scheduler))
    for each in found:
        if each.optimizer is not optimizer:
            raise ValueError(
                f"the {type(each).__name__} given as scheduler changes another optimizer, a "
                f"{type(each.optimizer).__name__}; expected schedulers of the one that is replaced"
            )
    return found


def _nested(scheduler: Any) -> Iterator[Any]:
    if scheduler is None:
        return
    if isinstance(scheduler, list | tuple):
        inner = list(scheduler)
    elif isinstance(scheduler, Mapping):
        inner = [scheduler["scheduler"]]
    else:
        inner = [getattr(scheduler, "scheduler", None), *getattr(scheduler, "_schedulers", ())]
        if hasattr(scheduler, "optimizer"):
            yield scheduler
        elif inner == [None]:
            raise TypeError(f"expected a learning rate scheduler, got {type(scheduler).__name__}")
    for each in inner:
        yield from _nested(each)


# --- Names ----------------------------------------------------------------------------------------


def optimizer_named(name: str) -> type[optim.Optimizer]:
    """Returns the class for a name of transformers' `optim` argument, or for the name of a class of
    octavo.optim in any spelling: paged_TITLE_bnb_8bit is PagedTITLE8bit.
    """
    # The names of implementations (bnb, torch, fused) have no meaning here.
    words = [w for w in str(name).lower().split("_") if w not in ("bnb", "torch", "fused")]
    if (found := {known.lower(): cls for known, cls in optim.CLASSES.items()}.get("".join(words))) is None:
        raise ValueError(
            f"no optimizer of octavo.optim is called {name!r}; expected one of {', '.join(algorithms())}, "
            "with paged_ before it or _8bit, _4bit, _fp8, _fp4, _32bit behind it"
        )
    return found


# --- NeMo -----------------------------------------------------------------------------------------


def register_with_nemo(*classes: type[optim.Optimizer]) -> list[str]:
    """Registers classes in NeMo by their names: by default those with 8bit, 4bit, Fp8 and Fp4 in them.
    Returns all names.

    A class whose name has a format gets the spellings of configs, too: for a title and `8bit` these are
    `title_8bit`, `title8bit` and `8bit_title`. Registered classes are skipped; an error registers nothing.
    """
    from nemo.core.config import OptimizerParams, register_optimizer_params
    from nemo.core.optim import optimizers as registry

    usual = ("8bit", "4bit", "Fp8", "Fp4")
    chosen = classes or tuple(getattr(optim, a.title + end) for a in algorithms().values() for end in usual)
    names = {cls: [cls.__name__, *_spellings(cls)] for cls in chosen}
    known = registry.AVAILABLE_OPTIMIZERS
    for cls, spelt in names.items():
        if taken := [name for name in spelt if known.get(name, cls) is not cls]:
            raise ValueError(
                f"Cannot override pre-existing optimizers. Conflicting optimizer name = {taken[0]}, which is "
                f"{known[taken[0]].__module__}.{known[taken[0]].__qualname__}"
            )
    for cls, (own, *others) in names.items():
        params = _nemo_params(cls, OptimizerParams)
        if own not in known:
            registry.register_optimizer(own, cls, params)
        for name in others:
            # register_optimizer stores parameters by the class, so it allows one name for a class.
            if name not in known:
                register_optimizer_params(name=f"{name}_params", optimizer_params=params)
                known[name] = cls
    return [name for spelt in names.values() for name in spelt]


def _spellings(cls: type[optim.Optimizer]) -> list[str]:
    """Returns other names of a class whose name consists of its algorithm and its format."""
    base, name = cls.algorithm, cls.__name__.lower()
    suffix = name.removeprefix(base)
    return [f"{base}_{suffix}", name, f"{suffix}_{base}"] if name.startswith(base) and suffix else []


def _nemo_params(cls: type[optim.Optimizer], base: type) -> type:
    """Returns the class's arguments that a config file may have, as NeMo's kind of dataclass."""
    fields: list[tuple[str, Any, Any]] = [
        ("block_size", typing.Optional[int], None),  # noqa: UP045 OmegaConf reads this spelling in any version
        ("master", str, "native"),
        ("min_quantized_size", int, MIN_QUANTIZED_SIZE),
        ("maximize", bool, False),
        ("seed", int, 0),
    ]
    if getattr(cls, "_state", None) is None:  # its name has no format
        fields.append(("state", str, "fp32"))
    for option in algorithms()[cls.algorithm].options:
        if option.tuple:
            if option.place == 0:
                default = inspect.signature(cls).parameters[option.tuple].default
                fields.append((option.tuple, tuple[(float,) * len(default)], default))
        elif option.range == FLAG:
            fields.append((option.name, bool, bool(option.default)))
        elif option.optional:
            fields.append((option.name, typing.Optional[float], None))  # noqa: UP045 as above
        elif option.name != "lr":  # the base has it
            fields.append((option.name, float, option.default))
    described = [(name, kind, dataclasses.field(default=value)) for name, kind, value in fields]
    return dataclasses.make_dataclass(f"{cls.__name__}Params", described, bases=(base,))
