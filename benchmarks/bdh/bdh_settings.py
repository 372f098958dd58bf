"""Model and training of a BDH run, with the names of docs/config.md, for both sides of a comparison.

The command gets the settings as a config file, the reference as Python values. Both sides decay and step
every parameter in the same way.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
from typing import Any

MODEL = ("n_layer", "n_embd", "n_head", "mlp_internal_dim_multiplier", "dropout")
DATA = ("block_size",)
SCHEDULERS = ("cosine", "constant")


@dataclasses.dataclass(frozen=True)
class Settings:
    n_layer: int = 6
    n_embd: int = 256
    n_head: int = 4
    mlp_internal_dim_multiplier: int = 128
    dropout: float = 0.1
    block_size: int = 128
    batch_size: int = 8
    max_steps: int = 3000
    learning_rate: float = 1e-3
    lr_scheduler: str = "cosine"
    warmup_steps: int = 100
    min_lr: float = 1e-4
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.999
    max_grad_norm: float = 1.0
    eval_steps: int = 200

    def rate(self, step: int) -> float:
        """Returns the learning rate of a step (the first is 1), as train/optim/param_groups.cc computes it.

        It rises linearly and then follows half a cosine, which would reach min_lr one step after the last.
        """
        if step <= self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        if self.lr_scheduler == "constant":
            return self.learning_rate
        part = (step - 1 - self.warmup_steps) / max(1, self.max_steps - self.warmup_steps)
        return self.min_lr + (self.learning_rate - self.min_lr) * 0.5 * (1 + math.cos(math.pi * part))

    def evaluated(self, step: int) -> bool:
        return step % self.eval_steps == 0 or step == self.max_steps

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def config(self, text: pathlib.Path) -> str:
        """Returns the config file of `octavo train`, without the keys that an arm sets."""
        values = self.as_dict()
        training = {name: value for name, value in values.items() if name not in MODEL + DATA}
        sections = {
            "model": {"name": "bdh"} | {n: values[n] for n in MODEL},
            "data": {"train": str(text.resolve()), "max_eval_samples": -1} | {n: values[n] for n in DATA},
            "training": {**training, "per_device_eval_batch_size": self.batch_size, "save_total_limit": 1},
        }
        lines = []
        for section, keys in sections.items():
            lines += [f"{section}:", *(f"  {key}: {json.dumps(value)}" for key, value in keys.items())]
        return "\n".join(lines) + "\n"


def add_flags(parser: argparse.ArgumentParser, defaults: Settings) -> None:
    group = parser.add_argument_group("the run", "keys of docs/config.md")
    for name, value in defaults.as_dict().items():
        choices = SCHEDULERS if name == "lr_scheduler" else None
        flag = "--" + name.replace("_", "-")
        group.add_argument(flag, type=type(value), default=value, choices=choices, help=f"({value})")


def from_flags(options: argparse.Namespace) -> Settings:
    return Settings(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Settings)})
