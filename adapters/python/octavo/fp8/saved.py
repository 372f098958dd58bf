"""The states of sites in checkpoints: one tensor of bytes each, which every file format supports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from . import choice_timing
from .sites import Site, find, site_of

_VERSION = 1
_WORDS = 256  # the text is padded to a multiple of this, so that most tensors of a model have one size


def pack(site: Site) -> Tensor:
    """Returns the scales and histories of x, w and dy, and the decisions, on the CPU."""
    states = site.states
    head: dict[str, Any] = {"version": _VERSION, "decisions": site.decisions}
    if states is not None:
        head["states"] = list(states.shape)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % _WORDS)
    size = torch.tensor([len(text)], dtype=torch.int64, device="cpu").view(torch.uint8)
    parts = [size, torch.frombuffer(bytearray(text), dtype=torch.uint8)]
    if states is not None:
        parts.append(states.detach().cpu().contiguous().view(-1).view(torch.uint8))
    return torch.cat(parts)


def unpack(site: Site, packed: Any) -> None:
    if not isinstance(packed, Tensor) or packed.dtype != torch.uint8 or packed.dim() != 1:
        raise ValueError("fp8: a site's state is a tensor of bytes, as get_extra_state() gives it")
    packed = packed.detach().cpu()
    try:
        size = int(packed[:8].view(torch.int64).item())
        head = json.loads(bytes(packed[8 : 8 + size].tolist()))
        decisions = {str(key): int(value) for key, value in head["decisions"].items()}
        states, version = None, head["version"]
        if "states" in head:
            states = packed[8 + size :].clone().view(torch.float32).view(head["states"])
    except (ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(f"fp8: a site's state cannot be read: {error}") from error
    if version != _VERSION:
        raise ValueError(f"fp8: a site's state has version {version}, expected {_VERSION}")
    choice_timing.decisions.update(decisions)
    site.load(states, decisions)


def state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Returns the states of all weights that `matmul` or `Linear` has used, by parameter name."""
    found = {}
    for name, param in model.named_parameters():
        site = find(param)
        if site is not None and (site.states is not None or site.decisions):
            found[name] = pack(site)
    return found


def load_state_dict(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Loads what `state_dict` has saved. Every name must be a parameter of the model."""
    params = dict(model.named_parameters())
    if unknown := [name for name in state if name not in params]:
        raise KeyError(f"fp8: the model has no parameter {unknown[0]!r}; its device and names come first")
    for name, packed in state.items():
        unpack(site_of(params[name]), packed)
