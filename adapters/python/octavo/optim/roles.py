"""The role of a parameter in its model: bias, norm or embedding. It depends on the module that owns the
parameter, not on its name: GPT-2's norms are named ln_1, others input_layernorm.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

_NORMS: tuple[type[nn.Module], ...] = tuple(
    getattr(nn, name)
    for name in (
        *("LayerNorm", "GroupNorm", "RMSNorm", "SyncBatchNorm"),
        *(f"{kind}{n}d" for kind in ("BatchNorm", "InstanceNorm") for n in (1, 2, 3)),
    )
    if hasattr(nn, name)  # the oldest supported torch has no RMSNorm
)
_BIAS = re.compile(r"(^|_)bias(_|$)")  # bias, in_proj_bias, bias_ih_l0

Owner = tuple[nn.Module, str]  # a module, and the parameter's name in it


def is_embedding(owners: Iterable[Owner]) -> bool:
    return any(isinstance(module, (nn.Embedding, nn.EmbeddingBag)) for module, _ in owners)


def is_bias(owners: Iterable[Owner]) -> bool:
    return any(_BIAS.search(name) for _, name in owners)


def is_norm(owners: Iterable[Owner], param: Tensor) -> bool:
    """Returns True for torch's norms, and for vectors of a module that is named a norm (LlamaRMSNorm)."""
    return any(
        isinstance(module, _NORMS) or (param.dim() <= 1 and "norm" in type(module).__name__.lower())
        for module, _ in owners
    )


class Exemptions:
    """The parameters that `no_decay` selects, and its entries that match none."""

    def __init__(self, model: Any, no_decay: Any, embeddings: str | None) -> None:
        if isinstance(no_decay, str):
            raise TypeError(f"no_decay is {no_decay!r}, expected True or a list: [{no_decay!r}]")
        self.by_kind = no_decay is True
        self.entries = () if isinstance(no_decay, bool) else tuple(no_decay)
        self.seen: set[Any] = set()
        self.owners: dict[int, list[Owner]] = {}  # by the parameter's id; a shared parameter has several
        for module in model.modules() if isinstance(model, nn.Module) else ():
            for name, param in module.named_parameters(recurse=False):
                self.owners.setdefault(id(param), []).append((module, name))
        by_module = self.by_kind or any(not isinstance(entry, str) for entry in self.entries)
        if (by_module or embeddings is not None) and not isinstance(model, nn.Module):
            asked = "no_decay by kind of module" if by_module else "embeddings="
            raise TypeError(f"param_groups: {asked} needs the model itself, not its named parameters")

    def is_embedding_weight(self, param: Tensor) -> bool:
        return is_embedding(self.owners.get(id(param), ()))

    def exempts(self, name: str, param: Tensor) -> bool:
        owners = self.owners.get(id(param), [])
        if self.by_kind:
            return is_bias(owners) or is_norm(owners, param) or is_embedding(owners)
        matching = [
            entry
            for entry in self.entries
            if (isinstance(entry, str) and fnmatch.fnmatchcase(name, entry))
            or (not isinstance(entry, str) and any(isinstance(module, entry) for module, _ in owners))
        ]
        self.seen.update(matching)
        return bool(matching)

    def unused(self, named: list[tuple[str, Tensor]]) -> list[str]:
        """Returns the warnings about entries that match nothing."""
        unused = [entry for entry in self.entries if entry not in self.seen]
        if not unused:
            return []
        usual = [(n, p) for n, p in named if is_bias(o := self.owners.get(id(p), [])) or is_norm(o, p)]
        left = [n for n, p in usual if p.requires_grad and not self.exempts(n, p)]
        decaying = f"these biases and norms decay: {', '.join(left[:3])}{' ...' if left[3:] else ''}; "
        shown = ", ".join(repr(entry) if isinstance(entry, str) else entry.__name__ for entry in unused)
        return [
            f"no_decay: no parameter matches {shown}; {decaying if left else ''}"
            "no_decay=True finds biases, norms and embeddings by their modules"
        ]
