"""nn.Linear in FP8, and models whose layers are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from . import saved
from .matmul import product
from .recipe import Recipe
from .sites import Site, site_of


class Linear(nn.Linear):
    """nn.Linear whose products are in FP8. Its parameters are nn.Linear's; its scales, histories and
    decisions are part of its state_dict, as `_extra_state`. A state_dict without that loads, too.
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
        return product(input, weight, self.bias, self.recipe, self._site(weight), linear=True)

    def _site(self, weight: Tensor) -> Site:
        """That of the weight: layers that share a weight share it."""
        own = self.fp8_site
        found = site_of(weight, own)
        if found is not own:
            self.fp8_site = found
        return found

    def _replicate_for_data_parallel(self) -> Linear:
        replica = super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]
        replica.fp8_site = Site()  # on another device, and in a thread of its own
        return replica  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return super().extra_repr() + ("" if self.recipe is None else f", {self.recipe}")

    def get_extra_state(self) -> Tensor:
        return saved.pack(self.fp8_site)

    def set_extra_state(self, state: Any) -> None:
        saved.unpack(self._site(self.weight), state)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """A file of nn.Linear has everything but what FP8 gathers itself."""
        super()._load_from_state_dict(state_dict, prefix, *args)
        missing: list[str] = args[2]
        own = prefix + "_extra_state"
        if own in missing:
            missing.remove(own)


def convert(
    model: nn.Module, recipe: Recipe | None = None, filter: Callable[[nn.Linear, str], bool] | None = None
) -> nn.Module:
    """Replaces every nn.Linear in the model, in place, by a Linear of `recipe`, with the same Parameters, so
    optimizers, hooks of parameters and names stay. `filter(module, name)` says which ones: False leaves one
    as it is. Subclasses of nn.Linear stay too. Returns the model.
    """
    for name, module in model.named_modules():
        # The exact type: a subclass may do something else in its forward.
        if type(module) is not nn.Linear or (filter is not None and not filter(module, name)):
            continue
        # The object stays, and with it its hooks and who else refers to it.
        module.__class__ = Linear
        module._own(recipe)  # type: ignore[operator]
    return model
