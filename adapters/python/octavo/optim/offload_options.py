"""The arguments of an optimizer that select which states are in host memory."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from .._engine import DEVICE, HOST, STREAM
from .options import from_text, is_number

RESIDENCES = {"none": DEVICE, "host": HOST, "stream": STREAM, "auto": STREAM}


@dataclasses.dataclass(frozen=True)
class Options:
    """docs/guides/offload.md explains these arguments."""

    offload: str = "none"
    offload_gradients: bool = False
    accumulate_in_fp32: bool = False
    offload_ratio: float = 1.0
    gpu_state_budget: int | None = None
    min_offload_size: int = 4096


def checked(given: dict[str, Any]) -> Options:
    """Returns the options of these arguments, which may be strings. ValueError if they are not possible."""
    values = {key: from_text(value) for key, value in {**dataclasses.asdict(Options()), **given}.items()}
    name = "none" if values["offload"] in (None, False) else values["offload"]
    if name not in RESIDENCES:
        said = "; 'host' steps on the CPU" if name == "cpu" else ""
        raise ValueError(f"Invalid offload: {name!r}, expected 'none', 'host', 'stream' or 'auto'{said}")
    ratio, budget, size = (values[key] for key in ("offload_ratio", "gpu_state_budget", "min_offload_size"))
    if not is_number(ratio) or not 0 <= ratio <= 1:
        raise ValueError(f"Invalid offload_ratio: {ratio!r}, expected a number from 0 to 1")
    if budget is not None and not (is_number(budget) and 0 <= budget < math.inf):
        raise ValueError(f"Invalid gpu_state_budget: {budget!r}, expected a number of bytes or None")
    if budget is not None and ratio != 1:
        raise ValueError(f"got gpu_state_budget={budget} and offload_ratio={ratio}: one of them decides")
    if not is_number(size) or size < 0 or int(size) != size:
        raise ValueError(f"Invalid min_offload_size: {size!r}, expected a number of elements")
    flags = bool(values["offload_gradients"]), bool(values["accumulate_in_fp32"])
    found = Options(name, *flags, float(ratio), None if budget is None else int(budget), int(size))
    if found.accumulate_in_fp32 and not found.offload_gradients:
        raise ValueError("accumulate_in_fp32=True needs offload_gradients=True: gradients add up there")
    if name == "none" and (wanted := _asked(found)):
        raise ValueError(f"{wanted} needs offload='host', 'stream' or 'auto'")
    return found


def _asked(options: Options) -> str:
    """Returns an option that has no effect without offload, with its value; empty if there is none."""
    for field in dataclasses.fields(Options):
        value = getattr(options, field.name)
        if field.name not in ("offload", "min_offload_size") and value != field.default:
            return f"{field.name}={value}"
    return ""
