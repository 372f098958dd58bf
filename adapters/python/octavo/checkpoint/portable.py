"""State dicts for other optimizers: fp32 moments and a step count under torch's names, and fp32 master
weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import _codec
from .._describe import algorithms
from .._shards import is_sharded, like, local
from . import masters
from .native import build_state_dict
from .saved import known_moments

if TYPE_CHECKING:
    from ..optim.optimizer import Optimizer
    from ..optim.states.state import Kind

# Options that torch's optimizers do not have, or that have another meaning there.
_OURS = frozenset(("state", "block_size", "master", "min_quantized_size", "seed", "clip_grad_norm"))


def moment_values(entry: dict[str, Any], name: str, kind: Kind) -> Tensor:
    """Returns a moment of the local parameter: fp32 on the CPU, in the parameter's logical shape."""
    codes, scales = entry[name].detach().cpu(), entry.get(name + _codec.SCALE)
    if codes.dtype == torch.float32:
        return codes.clone()
    moment = known_moments()[name]
    if _codec.code_dtype(moment, kind.state) is not None:
        codes = codes.permute(kind.order).contiguous()
    scales = None if scales is None else scales.cpu()
    values = _codec.decode(moment, kind.state, codes, scales, kind.memory_shape, kind.block_size)
    return values.permute(_codec.inverse(kind.order))


def portable_state_dict(optimizer: Optimizer) -> dict[str, Any]:
    described = algorithms()[optimizer.algorithm]
    # If the first step only fills a momentum, torch keeps no count: the buffer exists after it.
    second = any(slot.moment == "second" for slot in described.all_slots.values())
    counts = second or not described.first_step_fills

    def make_entry(entry: dict[str, Any], param: Tensor, kind: Kind) -> dict[str, Any]:
        out: dict[str, Any] = {}
        if counts and "step" in entry:
            out["step"] = torch.tensor(float(entry["step"]), dtype=torch.float32, device="cpu")
        for name in (n for n in known_moments() if n in entry):
            values = moment_values(entry, name, kind)
            if is_sharded(param):
                values = like(values.to(local(param).device), param, tuple(param.shape))
            out[name] = values
        return out

    saved = build_state_dict(optimizer, make_entry)
    torchs = {"foreach": None, "fused": None, "capturable": False, "differentiable": False}
    saved["param_groups"] = [
        {**{key: value for key, value in group.items() if key not in _OURS}, **torchs}
        for group in saved["param_groups"]
    ]
    saved["state"] = {number: entry for number, entry in saved["state"].items() if isinstance(number, int)}
    return saved


def master_parameters(optimizer: Optimizer) -> dict[Tensor, Tensor]:
    return {
        param: masters.join(local(param).cpu(), entry[_codec.MASTER].cpu())
        for param, entry in optimizer.entries()
        if _codec.MASTER in entry and local(param).dtype == torch.bfloat16
    }
