"""The rows of offload.py: an optimizer, the memory that holds its states, and how the training runs.

A row's name is its set, a colon and its optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import makers

CLIP = 1.0  # the norm that gradients are clipped to


@dataclass(frozen=True)
class Setup:
    make: makers.Make | None  # None: DeepSpeed, which makes its optimizer from the network
    attach: bool = False  # modules of the next forward pass wait for their part of the update
    clip: bool = False  # clip with torch's function or DeepSpeed's; Octavo clips in its step (see `make`)
    amp: bool = False  # fp32 parameters and autocast to bf16; without it everything is bf16
    compiled: bool = False  # torch.compile the complete model


def octavo(state: str, offload: str, attach: bool = False, **options: object) -> Setup:
    return Setup(makers.octavo(state, offload=offload, **options), attach)


RELEASE, OFFLOAD = {"gradient_release": True}, {"offload_gradients": True}
CLIPPED = {"clip_grad_norm": CLIP}
TORCH, DEEPSPEED = Setup(makers.torch_fused), Setup(None)
TORCHAO = {
    "torchao": Setup(makers.torchao_offload()),
    "torchao + offload_gradients": Setup(makers.torchao_offload(offload_gradients=True)),
}
ABLATIONS = {
    "none torch fused": TORCH,
    "none octavo 8bit": Setup(makers.octavo("8bit")),
    **TORCHAO,
    "octavo stream 8bit + attach": octavo("8bit", "stream", True),
    "octavo host 8bit + offload_gradients + attach": octavo("8bit", "host", True, **OFFLOAD),
}
SETS = {
    "bf16": {
        "none torch fused": TORCH,
        "none octavo 8bit": Setup(makers.octavo("8bit")),
        "none octavo 4bit + gradient_release": Setup(makers.octavo("4bit", **RELEASE)),
        **TORCHAO,
        "deepspeed ZeRO-Offload": DEEPSPEED,
        "bitsandbytes paged 8bit": Setup(makers.bitsandbytes("PagedAdamW8bit")),
        "octavo CPUOffloadOptimizer of torch": Setup(makers.octavo_offload()),
        "octavo CPUOffloadOptimizer of torch + offload_gradients": Setup(makers.octavo_offload(**OFFLOAD)),
        "octavo stream 8bit": octavo("8bit", "stream"),
        "octavo stream 8bit + attach": octavo("8bit", "stream", True),
        "octavo stream 4bit + gradient_release": octavo("4bit", "stream", **RELEASE),
        "octavo stream 4bit + gradient_release + attach": octavo("4bit", "stream", True, **RELEASE),
        "octavo stream 8bit + gradient_release": octavo("8bit", "stream", **RELEASE),
        "octavo host 8bit + offload_gradients": octavo("8bit", "host", **OFFLOAD),
        "octavo host 8bit + offload_gradients + attach": octavo("8bit", "host", True, **OFFLOAD),
        "octavo host 8bit + gradient_release": octavo("8bit", "host", **RELEASE),
        "octavo host 8bit + gradient_release + attach": octavo("8bit", "host", True, **RELEASE),
    },
    "bf16 clip": {
        "none torch fused": replace(TORCH, clip=True),
        "deepspeed ZeRO-Offload": replace(DEEPSPEED, clip=True),
        "none octavo 8bit": Setup(makers.octavo("8bit", **CLIPPED)),
        "octavo stream 8bit": octavo("8bit", "stream", **CLIPPED),
        "octavo stream 8bit + attach": octavo("8bit", "stream", True, **CLIPPED),
        "octavo stream 4bit + offload_gradients + attach": octavo(
            "4bit", "stream", True, **OFFLOAD, **CLIPPED
        ),
        "octavo host 8bit + offload_gradients + attach": octavo("8bit", "host", True, **OFFLOAD, **CLIPPED),
    },
    "bf16 compiled": {name: replace(row, compiled=True) for name, row in ABLATIONS.items()},
    "amp eager": {name: replace(row, amp=True) for name, row in ABLATIONS.items()},
}
ROWS = {f"{name}: {row}": setup for name, rows in SETS.items() for row, setup in rows.items()}
