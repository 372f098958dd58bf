"""What a parameter is in its model: a bias, a norm's, an embedding. The module that owns it says so, not its
name: GPT-2 calls its norms ln_1, others input_layernorm.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import Tensor, nn

_NORMS: tuple[type[nn.Module], ...] = tuple(
    getattr(nn, name)
    for name in (
        *("LayerNorm", "GroupNorm", "RMSNorm", "SyncBatchNorm"),
        *(f"{kind}{n}d" for kind in ("BatchNorm", "InstanceNorm") for n in (1, 2, 3)),
    )
    if hasattr(nn, name)  # RMSNorm is younger than the oldest torch here
)
_BIAS = re.compile(r"(^|_)bias(_|$)")  # bias, in_proj_bias, bias_ih_l0

Owner = tuple[nn.Module, str]  # a module, and the parameter's name in it


def owners_of(model: nn.Module) -> dict[int, list[Owner]]:
    """The modules that each parameter belongs to, by its id; a shared one has several."""
    found: dict[int, list[Owner]] = {}
    for module in model.modules():
        for name, param in module.named_parameters(recurse=False):
            found.setdefault(id(param), []).append((module, name))
    return found


def is_embedding(owners: Iterable[Owner]) -> bool:
    return any(isinstance(module, (nn.Embedding, nn.EmbeddingBag)) for module, _ in owners)


def is_bias(owners: Iterable[Owner]) -> bool:
    return any(_BIAS.search(name) for _, name in owners)


def is_norm(owners: Iterable[Owner], param: Tensor) -> bool:
    """A norm of torch's, or a vector of a module that is called one (LlamaRMSNorm)."""
    return any(
        isinstance(module, _NORMS) or (param.dim() <= 1 and "norm" in type(module).__name__.lower())
        for module, _ in owners
    )
