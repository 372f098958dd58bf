"""Gives DeepSpeed's ZeRO-Offload the calls of an optimizer, for offload.py.

ZeRO stage 2 with the optimizer on the CPU, in bf16, on one GPU, with the settings of DeepSpeed's tutorial and
no tuning. DeepSpeed compiles its CPU Adam at the first use, with nvcc and ninja.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import makers
import torch


def config(lr: float, batch: int, clip: float) -> dict[str, Any]:
    """`clip` is the norm that gradients are clipped to; 0 disables clipping."""
    return {
        "train_micro_batch_size_per_gpu": batch,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": clip,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": lr}},
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "contiguous_gradients": True,
            "overlap_comm": True,
        },
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _set_environment(device: torch.device) -> None:
    """Sets the variables that DeepSpeed's launcher would set for one process."""
    os.environ.setdefault("DS_ACCELERATOR", device.type)
    one = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    for name, value in {**one, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}.items():
        os.environ.setdefault(name, value)


class ZeroOffload:
    """A DeepSpeed engine. The caller must call `model` in place of the network."""

    def __init__(self, net: torch.nn.Module, lr: float, batch: int, clip: float) -> None:
        _set_environment(next(net.parameters()).device)
        initialize = makers.imported("deepspeed").initialize
        settings = config(lr, batch, clip)
        self.model, *_ = initialize(model=net, model_parameters=net.parameters(), config=settings)

    def backward(self, loss: torch.Tensor) -> None:
        self.model.backward(loss)

    def step(self) -> None:
        self.model.step()

    def zero_grad(self) -> None:
        """Does nothing: the engine's step has freed the gradients."""
