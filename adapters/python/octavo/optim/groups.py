"""Precision per layer: parameter groups from name patterns, and bitsandbytes' overrides.

An override is an attribute of the parameter itself, not of an optimizer or a process-wide table. It must be
set before the parameter's first step. Copies of the parameter have it too (overrides.py). Libraries that
replace parameters (FSDP2) lose it: use param_groups with them.
"""

from __future__ import annotations

import fnmatch
import warnings
import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from . import options, roles
from .overrides import OVERRIDE, preserve_in_copies

_KEYS = ("state", "block_size", "master", "min_quantized_size")


def param_groups(
    model: nn.Module | Iterable[tuple[str, Tensor]],
    patterns: Mapping[str, str | Mapping[str, Any]] | None = None,
    *,
    weight_decay: float | None = None,
    no_decay: bool | Iterable[str | type[nn.Module]] = (),
    embeddings: str | None = None,
    unmatched: str = "error",
) -> list[dict[str, Any]]:
    """Makes parameter groups by name and by kind of module:
    `param_groups(model, {"*.head*": {"lr": 1e-3}}, weight_decay=0.1, no_decay=True, embeddings="fp32")`.

    The first pattern (as in a shell) that matches a parameter's name decides: a string is a state format, a
    mapping has any options of a group. Parameters that no pattern matches are first, with the optimizer's
    options. `embeddings` is the state format of embedding modules' weights that no pattern matches.
    `no_decay` selects parameters that get weight_decay 0: True selects biases, norms and embeddings by the
    modules that own them, a list has patterns of names and classes of modules. The others get `weight_decay`
    if it is given. Parameters that need no gradient are omitted.

    An entry that matches no parameter is an error in `patterns` and a warning in `no_decay`, because a model
    may have no bias. `unmatched="warn"` makes both warnings, for code that several models share; "ignore"
    makes neither.
    """
    patterns = dict(patterns or {})
    named = list(model.named_parameters() if isinstance(model, nn.Module) else model)
    exempt = roles.Exemptions(model, no_decay, embeddings)
    if unmatched not in ("error", "warn", "ignore"):
        raise ValueError(f"Invalid unmatched: {unmatched!r}, expected 'error', 'warn' or 'ignore'")
    chosen: dict[tuple[str | None, bool, bool], list[tuple[str, Tensor]]] = {}
    unused = set(patterns)
    for name, param in named:
        pattern = next((p for p in patterns if fnmatch.fnmatchcase(name, p)), None)
        unused.discard(str(pattern))
        exempted = exempt.exempts(name, param)
        embedded = pattern is None and embeddings is not None and exempt.is_embedding_weight(param)
        if param.requires_grad:
            chosen.setdefault((pattern, embedded, exempted), []).append((name, param))
    if unused and unmatched == "error":
        known = ", ".join(name for name, _ in named[:5])
        raise ValueError(
            f"no parameter's name matches {sorted(unused)}; the names begin {known}; unmatched='warn' lets "
            "patterns be for other models"
        )
    if unmatched != "ignore":
        for said in [f"no parameter's name matches {p!r}" for p in sorted(unused)] + exempt.unused(named):
            warnings.warn(f"param_groups: {said}", stacklevel=2)
    order = {pattern: place for place, pattern in enumerate([None, *patterns])}
    groups = []
    for key in sorted(chosen, key=lambda key: (order[key[0]], key[1:])):
        pattern, embedded, exempted = key
        asked = patterns[pattern] if pattern is not None else {}
        group: dict[str, Any] = {"state": asked} if isinstance(asked, str) else dict(asked)
        if embedded:
            group["state"] = embeddings
        if exempted:
            group.setdefault("weight_decay", 0.0)
        elif weight_decay is not None:
            group.setdefault("weight_decay", weight_decay)
        group["params"] = [param for _, param in chosen[key]]
        group["param_names"] = [name for name, _ in chosen[key]]
        groups.append(group)
    return groups


def set_state(parameter: Tensor, **asked: Any) -> None:
    """Overrides `state`, `block_size`, `master` or `min_quantized_size` of the group for one parameter."""
    merged = {**getattr(parameter, OVERRIDE, {}), **asked}
    if unknown := [key for key in merged if key not in _KEYS]:
        raise ValueError(
            f"cannot override {unknown[0]!r} for one parameter, expected one of {', '.join(_KEYS)}"
        )
    checked = {"state": "fp32", "block_size": None, "master": "native", "min_quantized_size": 0, **merged}
    options.check_format(checked)
    preserve_in_copies()
    setattr(parameter, OVERRIDE, {key: checked[key] for key in merged})


class GlobalOptimManager:
    """bitsandbytes' interface to overrides, for code written against it; new code uses param_groups."""

    _instance: GlobalOptimManager | None = None

    def __init__(self) -> None:
        self._overridden: dict[int, weakref.ref[Tensor]] = {}  # by id; only initialize() needs it

    @classmethod
    def get_instance(cls) -> GlobalOptimManager:
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def initialize(self) -> None:
        """Removes the overrides that were set here. Existing states stay as they are."""
        for parameter in (ref() for ref in self._overridden.values()):
            if parameter is not None and hasattr(parameter, OVERRIDE):
                delattr(parameter, OVERRIDE)
        self._overridden = {}

    def register_parameters(self, params: Iterable[Any]) -> None:
        """Does nothing: an override is an attribute of its parameter. Code for bitsandbytes may call it."""
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
    """Translates bitsandbytes' keys to this library's."""
    asked = dict(config)
    if "optim_bits" in asked:
        asked["state"] = options.state_of_bits(asked.pop("optim_bits"))
    if "min_8bit_size" in asked:
        asked["min_quantized_size"] = asked.pop("min_8bit_size")
    return asked
