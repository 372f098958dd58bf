"""The options of a parameter group as the engine has them.

Options may change between any two steps. Numbers do not change in place, so a step compares the objects.
"""

from __future__ import annotations

import ctypes
import operator
from typing import Any

import torch
from torch import Tensor

from .. import _engine
from .._describe import FLAG, Algorithm, Option
from . import options

_OTHERS = ("maximize", "seed", "clip_grad_norm", "master", "capturable", "fused")
_CPU = torch.device("cpu")


class GroupOptions:
    def __init__(self, described: Algorithm) -> None:
        self._described = described
        self._args = _engine.new_args()
        self._args.decay = 2 if described.decoupled else 1
        self.names = (*dict.fromkeys(o.tuple or o.name for o in described.options), *_OTHERS)
        self._cells = cells_of(described, self._args)
        # The engine's options: whether a scaler lets the device skip steps, then the values of `names`.
        self.seen: tuple[Any, ...] = ()
        self.rate: Tensor | None = None  # where the engine reads the learning rate
        self.key: tuple[Any, ...] = ()  # values of the options that states depend on

    def is_current(self, group: dict[str, Any], amp: bool) -> bool:
        """Returns whether the engine has these options. `amp`: a scaler lets the device skip steps."""
        now = (amp, *map(group.get, self.names))
        return len(self.seen) == len(now) and all(map(operator.is_, now, self.seen))

    def send_to_engine(
        self,
        engine: _engine.Engine,
        number: int,
        group: dict[str, Any],
        amp: bool,
        devices: set[torch.device],
    ) -> None:
        """Checks the options and gives them to the engine. The group's parameters are on `devices`."""
        options.check_numbers(self._described, group)
        args, lr = self._args, group["lr"]
        for option, cell in self._cells:
            cell.value = int(option.of(group)) if option.range == FLAG else float(option.of(group) or 0.0)
        self.rate, args.scalar_lr = None, None
        if isinstance(lr, Tensor) and lr.device.type != "cpu" and devices == {lr.device}:
            self.rate = lr.detach().to(torch.float32)
            args.scalar_lr = self.rate.data_ptr()
        else:
            args.lr = max(float(lr), 0.0)  # a schedule's last rate may be slightly negative
        args.maximize, args.seed = int(group["maximize"]), group["seed"]
        args.clip_grad_norm = group["clip_grad_norm"] or 0.0
        switches = self._described.switches(group)
        engine.set_group(number, switches, args, _CPU if self.rate is None else self.rate.device)
        seen = (amp, *map(group.get, self.names))
        in_tuples = [value for values in seen if isinstance(values, tuple) for value in values]
        self.seen = () if any(isinstance(value, Tensor) for value in (*seen, *in_tuples)) else seen


def cells_of(described: Algorithm, args: Any) -> list[tuple[Option, Any]]:
    """Returns the options that are fields of octavo_step_args, except the learning rate, and these fields."""
    options = [option for option in described.options if option.offset >= 0 and option.name != "lr"]
    kinds = [ctypes.c_uint32 if option.range == FLAG else ctypes.c_double for option in options]
    return [(o, kind.from_buffer(args, o.offset)) for o, kind in zip(options, kinds, strict=True)]
