"""Loads the published BDH implementation from a checkout, and trains it.

No code of the checkout is copied here. A mode is a precision, with or without torch.compile: `bf16` is
autocast over fp32 weights, `tf32` is fp32 with matmuls in TF32, `fp32` uses fp32 matmuls.
"""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from typing import Any

import torch
from bdh_settings import Settings
from text_windows import Text
from torch import Tensor

MODES = ("bf16", "bf16-compiled", "tf32", "tf32-compiled", "fp32", "fp32-compiled")


def load(path: pathlib.Path) -> Any:
    """Returns the module bdh.py of a checkout."""
    file = path / "bdh.py" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"{file} is not a file: name a checkout of https://github.com/pathwaycom/bdh")
    spec = importlib.util.spec_from_file_location("bdh_reference", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


class Reference:
    """The model and its AdamW."""

    def __init__(
        self, module: Any, settings: Settings, mode: str, device: torch.device, seed: int = 0
    ) -> None:
        precision, _, compiled = mode.partition("-")
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch.manual_seed(seed)
        s = settings
        names = ("n_layer", "n_embd", "dropout", "n_head", "mlp_internal_dim_multiplier")
        config = module.BDHConfig(vocab_size=256, **{name: getattr(s, name) for name in names})
        self.settings, self.device, self.bf16 = settings, device, precision == "bf16"
        self.model: Any = module.BDH(config).to(device)
        self.forward: Any = torch.compile(self.model) if compiled else self.model
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            self.parameters, lr=0.0, betas=(s.beta1, s.beta2), weight_decay=s.weight_decay, fused=True
        )

    def _loss(self, forward: Any, tokens: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            loss: Tensor = forward(tokens, targets)[1]
        return loss

    def step(self, tokens: Tensor, targets: Tensor, rate: float) -> Tensor:
        """Steps, and returns the loss before the step as a tensor on the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = self._loss(self.forward, tokens, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.settings.max_grad_norm > 0:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.max_grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    @torch.no_grad()
    def evaluate(self, text: Text, rows: int = 32) -> float:
        """Returns nats per byte of the held-out part. It is not compiled: its last batch may be smaller."""
        self.model.eval()
        starts = text.held_out_starts()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        for some in torch.split(starts, rows):
            total += self._loss(self.model, *text.windows(some)).double() * len(some)
        self.model.train()
        return float(total) / len(starts)
