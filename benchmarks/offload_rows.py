"""The rows of offload.py: how a training runs, and the optimizer with its states somewhere.

A row's name is its set, a colon and its optimizer. Goals are the project's, for one H200.
"""

from __future__ import annotations

from dataclasses import dataclass

import makers

CLIP = 1.0  # the norm that gradients are clipped to


@dataclass(frozen=True)
class Way:
    make: makers.Make | None  # none: DeepSpeed, which takes the network
    attach: bool = False  # the update waits for the modules of the next forward pass
    clip: bool = False  # by torch's function or DeepSpeed's; Octavo clips in the step, by an option of `make`
    amp: bool = False  # fp32 parameters under autocast to bf16; else everything is bf16
    compiled: bool = False  # the whole model, by torch.compile
    goal: tuple[float, float] | None = None  # s/iteration and peak GB


def offloaded(state: str, offload: str, attach: bool = False, **others: object) -> Way:
    mine = {key: others.pop(key) for key in ("amp", "compiled", "goal") if key in others}
    return Way(makers.octavo(state, offload=offload, **others), attach, **mine)  # type: ignore[arg-type]


PLAIN = {
    "none torch fused": Way(makers.torch_fused),
    "none octavo 8bit": Way(makers.octavo("8bit")),
    "none octavo 4bit + gradient_release": Way(makers.octavo("4bit", gradient_release=True)),
    "torchao": Way(makers.torchao_offload()),
    "torchao + offload_gradients": Way(makers.torchao_offload(offload_gradients=True)),
    "deepspeed ZeRO-Offload": Way(None),
    "bitsandbytes paged 8bit": Way(makers.bitsandbytes("PagedAdamW8bit")),
    "octavo CPUOffloadOptimizer of torch": Way(makers.octavo_offload()),
    "octavo CPUOffloadOptimizer of torch + offload_gradients": Way(
        makers.octavo_offload(offload_gradients=True)
    ),
    "octavo stream 8bit": offloaded("8bit", "stream", goal=(0.200, 5.4)),
    "octavo stream 8bit + attach": offloaded("8bit", "stream", True, goal=(0.200, 5.4)),
    "octavo stream 4bit + gradient_release": offloaded(
        "4bit", "stream", gradient_release=True, goal=(0.200, 4.2)
    ),
    "octavo stream 4bit + gradient_release + attach": offloaded(
        "4bit", "stream", True, gradient_release=True, goal=(0.200, 4.2)
    ),
    "octavo stream 8bit + gradient_release": offloaded("8bit", "stream", gradient_release=True),
    "octavo host 8bit + offload_gradients": offloaded(
        "8bit", "host", offload_gradients=True, goal=(0.24, 4.2)
    ),
    "octavo host 8bit + offload_gradients + attach": offloaded(
        "8bit", "host", True, offload_gradients=True, goal=(0.24, 4.2)
    ),
    "octavo host 8bit + gradient_release": offloaded("8bit", "host", gradient_release=True, goal=(0.24, 4.2)),
    "octavo host 8bit + gradient_release + attach": offloaded(
        "8bit", "host", True, gradient_release=True, goal=(0.24, 4.2)
    ),
}
CLIPPED = {
    "none torch fused": Way(makers.torch_fused, clip=True),
    "deepspeed ZeRO-Offload": Way(None, clip=True),
    "none octavo 8bit": Way(makers.octavo("8bit", clip_grad_norm=CLIP)),
    "octavo stream 8bit": offloaded("8bit", "stream", clip_grad_norm=CLIP),
    "octavo stream 8bit + attach": offloaded("8bit", "stream", True, clip_grad_norm=CLIP, goal=(0.210, 5.4)),
    "octavo stream 4bit + offload_gradients + attach": offloaded(
        "4bit", "stream", True, offload_gradients=True, clip_grad_norm=CLIP, goal=(0.225, 4.3)
    ),
    "octavo host 8bit + offload_gradients + attach": offloaded(
        "8bit", "host", True, offload_gradients=True, clip_grad_norm=CLIP, goal=(0.28, 4.3)
    ),
}


def _ablation(**how: bool) -> dict[str, Way]:
    """The rows of torchao's ablations: without offload, torchao's, and Octavo's two residences."""
    return {
        "none torch fused": Way(makers.torch_fused, **how),
        "none octavo 8bit": Way(makers.octavo("8bit"), **how),
        "torchao": Way(makers.torchao_offload(), **how),
        "torchao + offload_gradients": Way(makers.torchao_offload(offload_gradients=True), **how),
        "octavo stream 8bit + attach": offloaded("8bit", "stream", True, **how),
        "octavo host 8bit + offload_gradients + attach": offloaded(
            "8bit", "host", True, offload_gradients=True, **how
        ),
    }


SETS = {
    "bf16": PLAIN,
    "bf16 clip": CLIPPED,
    "bf16 compiled": _ablation(compiled=True),
    "amp eager": _ablation(amp=True),
}
ROWS = {f"{name}: {row}": way for name, rows in SETS.items() for row, way in rows.items()}
