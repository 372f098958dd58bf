"""nn.Linear in FP8, and the conversion of models to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from . import saved
from .matmul import multiply
from .recipe import Recipe
from .sites import Site, site_of


class Linear(nn.Linear):
    """nn.Linear with FP8 matmuls. Its parameters are those of nn.Linear. Its scales, histories and decisions
    are `_extra_state` in its state_dict; a state_dict without this entry can be loaded too.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: Recipe | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        self._own(recipe)

    def _own(self, recipe: Recipe | None) -> None:
        if recipe is not None and not isinstance(recipe, Recipe):
            raise TypeError(f"recipe: got {type(recipe).__name__}, expected an octavo.fp8.Recipe")
        self.recipe = recipe
        self.fp8_site = Site()

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight
        return multiply(input, weight, self.bias, self.recipe, self._site(weight), linear=True)

    def _site(self, weight: Tensor) -> Site:
        """Returns the weight's site: layers that share a weight share the site."""
        own = self.fp8_site
        found = site_of(weight, own)
        if found is not own:
            self.fp8_site = found
        return found

    def _replicate_for_data_parallel(self) -> Linear:
        replica = super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        replica.fp8_site = Site()  # a replica is on another device and runs in another thread
        return replica  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.recipe is None else f", {self.recipe}")

    def get_extra_state(self) -> Tensor:
        return saved.pack(self.fp8_site)

    def set_extra_state(self, state: Any) -> None:
        saved.unpack(self._site(self.weight), state)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Accepts a state_dict of nn.Linear, which has no `_extra_state`."""
        super()._load_from_state_dict(state_dict, prefix, *args)
        missing: list[str] = args[2]
        own = prefix + "_extra_state"
        if own in missing:
            missing.remove(own)


def convert(
    model: nn.Module, recipe: Recipe | None = None, filter: Callable[[nn.Linear, str], bool] | None = None
) -> nn.Module:
    """Converts every nn.Linear in the model to a Linear with `recipe`, in place, and returns the model.

    Parameters stay the same objects, so optimizers, hooks and names stay valid. Modules for which
    `filter(module, name)` returns False, and subclasses of nn.Linear, are not converted.
    """
    for name, module in model.named_modules():
        # A subclass may have another forward.
        if type(module) is not nn.Linear or (filter is not None and not filter(module, name)):
            continue
        # The object stays the same, so its hooks and all references to it stay valid.
        module.__class__ = Linear
        module._own(recipe)  # type: ignore[operator]
    return model
