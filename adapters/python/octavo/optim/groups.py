"""Precision per layer: parameter groups from name patterns, and bitsandbytes' overrides.

An override is an attribute of the parameter itself, so it belongs to no optimizer and no process-wide table.
It must be set before the parameter's first step; libraries that replace parameters (FSDP2) lose it: use
param_groups there.
"""

from __future__ import annotations

import fnmatch
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from . import options, state

_KEYS = ("state", "block_size", "master", "min_quantized_size")


def param_groups(
    model: nn.Module | Iterable[tuple[str, Tensor]],
    patterns: Mapping[str, str | Mapping[str, Any]],
    *,
    weight_decay: float | None = None,
    no_decay: Iterable[str] = (),
) -> list[dict[str, Any]]:
    """Parameter groups by name: `param_groups(model, {"*.embed*": "fp32", "*norm*": {"weight_decay": 0.0}})`.

    The first pattern (as in a shell) that matches a parameter's name decides: a string is a state format, a
    mapping any options of a group. Parameters that no pattern matches come first, with the optimizer's own
    options; names in `no_decay` patterns get weight_decay 0, the others `weight_decay` where it is given.
    Parameters that need no gradient are left out. A pattern that matches nothing is an error.
    """
    named = list(model.named_parameters() if isinstance(model, nn.Module) else model)
    chosen: dict[tuple[str | None, bool], list[tuple[str, Tensor]]] = {}
    unused, exempt = set(patterns), tuple(no_decay)
    for name, param in named:
        pattern = next((p for p in patterns if fnmatch.fnmatchcase(name, p)), None)
        unused.discard(str(pattern))
        if param.requires_grad:
            spared = any(fnmatch.fnmatchcase(name, p) for p in exempt)
            chosen.setdefault((pattern, spared), []).append((name, param))
    if unused:
        known = ", ".join(name for name, _ in named[:5])
        raise ValueError(f"no parameter's name matches {sorted(unused)}; the names begin {known}")
    order = {pattern: place for place, pattern in enumerate([None, *patterns])}
    groups = []
    for (pattern, spared), members in sorted(
        chosen.items(), key=lambda item: (order[item[0][0]], item[0][1])
    ):
        asked = patterns[pattern] if pattern is not None else {}
        group: dict[str, Any] = {"state": asked} if isinstance(asked, str) else dict(asked)
        if spared:
            group.setdefault("weight_decay", 0.0)
        elif weight_decay is not None:
            group.setdefault("weight_decay", weight_decay)
        group["params"] = [param for _, param in members]
        group["param_names"] = [name for name, _ in members]
        groups.append(group)
    return groups


def set_state(parameter: Tensor, **asked: Any) -> None:
    """Overrides `state`, `block_size`, `master` or `min_quantized_size` for one parameter, whatever its group
    says.
    """
    merged = {**getattr(parameter, state.OVERRIDE, {}), **asked}
    if unknown := [key for key in merged if key not in _KEYS]:
        raise ValueError(
            f"cannot override {unknown[0]!r} for one parameter, expected one of {', '.join(_KEYS)}"
        )
    checked = {"state": "fp32", "block_size": None, "master": "native", "min_quantized_size": 0, **merged}
    options.check_format(checked)
    setattr(parameter, state.OVERRIDE, {key: checked[key] for key in merged})


class GlobalOptimManager:
    """bitsandbytes' interface to overrides, for code written against it; new code uses param_groups."""

    _instance: GlobalOptimManager | None = None

    def __init__(self) -> None:
        self._overridden: dict[int, weakref.ref[Tensor]] = {}  # by id; for initialize() alone

    @classmethod
    def get_instance(cls) -> GlobalOptimManager:
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def initialize(self) -> None:
        """Takes back the overrides of parameters that were overridden here. States that exist stay as they
        are.
        """
        for parameter in (ref() for ref in self._overridden.values()):
            if parameter is not None and hasattr(parameter, state.OVERRIDE):
                delattr(parameter, state.OVERRIDE)
        self._overridden = {}

    def register_parameters(self, params: Iterable[Any]) -> None:
        """Nothing to do: an override is kept by the parameter. There so that calls of it work."""
        del params

    def override_config(
        self,
        parameters: Tensor | Iterable[Tensor],
        key: str | None = None,
        value: Any = None,
        key_value_dict: Mapping[str, Any] | None = None,
    ) -> None:
        asked = dict(key_value_dict or {})
        if key is not None:
            asked[key] = value
        config = _translated(asked)
        for parameter in [parameters] if isinstance(parameters, torch.Tensor) else parameters:
            self._override(parameter, config)

    def register_module_override(self, module: nn.Module, param_name: str, config: Mapping[str, Any]) -> None:
        self._override(getattr(module, param_name), _translated(config))

    def _override(self, parameter: Tensor, config: Mapping[str, Any]) -> None:
        set_state(parameter, **config)
        self._overridden[id(parameter)] = weakref.ref(parameter)


def _translated(config: Mapping[str, Any]) -> dict[str, Any]:
    """bitsandbytes' keys as ours."""
    asked = dict(config)
    if "optim_bits" in asked:
        asked["state"] = options.state_of_bits(asked.pop("optim_bits"))
    if "min_8bit_size" in asked:
        asked["min_quantized_size"] = asked.pop("min_8bit_size")
    return asked
