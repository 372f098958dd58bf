"""What a step of the Python package costs the calling thread, apart from the work itself: many tiny tensors.

Cases: `parakeet` (646 tensors), `lora` (3,072), `experts` (64 experts of ten tensors each, of which another
eight have gradients at every step). Gradients lie where they lay before, as a GPU's allocator has it in a
training loop. On the CPU the figure is the thread's own time, kernels of one element included, so that other
work on the machine counts little; on a GPU it is the wall clock of the call with an idle queue, which is when
kernels begin late if the host is slow. torch.optim.AdamW(fused=True) is beside it.

With --offload: an iteration over 400 layers of two tensors each, with states in host memory. Hooks of
parameters and modules work in its passes, so the figure is that of forward, backward, step and zero_grad,
less the passes without an optimizer.

With --schedule: 646 tensors of 4,096 elements, stepped by torch, Octavo and torchao with a constant learning
rate and, in turns, with one that CosineAnnealingLR.step() changes after every step. The ratio is that of the
optimizers' step() alone; its range is that of the rounds.

    .venv/bin/python benchmarks/host_time.py [--device cuda] [--clip] [--repeat 50] [--offload | --schedule]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import harness  # noqa: F401  (the way to the package)
import makers
import torch
from torch.nn import Parameter

from octavo import optim  # isort: skip

CASES = {"parakeet": 646, "lora": 3072, "experts": 6 + 640}
_ACTIVE = 8


def active(case: str, params: list[Parameter]) -> Iterator[list[Parameter]]:
    """The parameters that have gradients, step after step."""
    if case != "experts":
        while True:
            yield params
    experts = [params[6 + 10 * i : 16 + 10 * i] for i in range(64)]
    chance = random.Random(0)
    yield params  # all of them get states
    while True:
        yield params[:6] + [p for expert in chance.sample(experts, _ACTIVE) for p in expert]


def measure(
    make: Callable[[list[Parameter]], torch.optim.Optimizer], case: str, device: str, repeat: int
) -> tuple[float, float]:
    """Microseconds of a step: the median and the least."""
    params = [Parameter(torch.zeros(1, device=device)) for _ in range(CASES[case])]
    optimizer, times = make(params), []
    grads = {p: torch.ones_like(p) for p in params}
    clock = time.thread_time if device == "cpu" else time.perf_counter
    for turn, some in zip(range(repeat + 5), active(case, params), strict=False):
        for p in params:
            p.grad = None
        for p in some:
            p.grad = grads[p]
        if device != "cpu":
            torch.cuda.synchronize()
        start = clock()
        optimizer.step()
        elapsed = clock() - start
        if turn >= 5:
            times.append(1e6 * elapsed)
    return statistics.median(times), min(times)


LAYERS = 400
OFFLOADED: dict[str, dict[str, Any]] = {
    "device": {},
    "device, gradient_release": {"gradient_release": True},
    "stream": {"offload": "stream"},
    "stream, attach": {"offload": "stream", "attach": True},
    "stream, gradient_release": {"offload": "stream", "gradient_release": True},
    "stream, offload_gradients, attach": {"offload": "stream", "offload_gradients": True, "attach": True},
    "host, offload_gradients, attach": {"offload": "host", "offload_gradients": True, "attach": True},
    "host, gradient_release": {"offload": "host", "gradient_release": True},
}


def iteration_us(options: dict[str, Any] | None, device: str, repeat: int) -> float:
    """The least microseconds of an iteration; without options: of the passes alone."""
    net = torch.nn.Sequential(*(torch.nn.Linear(1, 1, device=device) for _ in range(LAYERS)))
    given, optimizer = dict(options or {}), None
    attached = given.pop("attach", False)
    if options is not None:
        sizes = {"min_8bit_size": 0, **({"min_offload_size": 0} if "offload" in given else {})}
        optimizer = optim.AdamW8bit(net.parameters(), **sizes, **given)
        if attached:
            optimizer.attach(net)
    clock = time.thread_time if device == "cpu" else time.perf_counter
    x, times = torch.ones(1, 1, device=device), []
    for _ in range(repeat + 5):
        if device != "cpu":
            torch.cuda.synchronize()
        start = clock()
        net(x).sum().backward()
        if optimizer is not None:
            optimizer.step()
        (optimizer or net).zero_grad()
        times.append(1e6 * (clock() - start))
    return min(times[5:])


def offloaded(device: str, clip: float | None, repeat: int) -> None:
    passes = iteration_us(None, device, repeat)
    print(f"passes alone: {passes:.0f}; beyond them:")
    for name, options in OFFLOADED.items():
        found = iteration_us({**options, "clip_grad_norm": clip}, device, repeat) - passes
        print(f"{name:36s} {found:6.0f}")


SCHEDULED: dict[str, makers.Make] = {
    "torch fused": makers.torch_fused,
    "octavo 8bit": makers.octavo("8bit"),
    "torchao 8bit": makers.torchao("AdamW8bit"),
}
TENSORS, NUMEL, ROUNDS = 646, 4096, 5  # of --schedule


class Scheduled:
    """Parameters with gradients, and an optimizer whose learning rate changes after every step or never."""

    def __init__(self, make: makers.Make, device: str, steps: int, changes: bool) -> None:
        params = [Parameter(torch.zeros(NUMEL, device=device)) for _ in range(TENSORS)]
        for param in params:
            param.grad = torch.ones_like(param)
        self._optimizer, self._device = make(params, 1e-3), device
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR
        self._scheduler = cosine(self._optimizer, T_max=steps) if changes else None

    def step_us(self) -> float:
        clock = time.thread_time if self._device == "cpu" else time.perf_counter
        if self._device != "cpu":
            torch.cuda.synchronize()
        start = clock()
        self._optimizer.step()
        elapsed = clock() - start
        if self._scheduler is not None:
            self._scheduler.step()
        return 1e6 * elapsed


def scheduled(make: makers.Make, device: str, repeat: int) -> tuple[float, float, list[float]]:
    """Microseconds of a step with a constant rate and with one that changes, and their ratio by round."""
    steps = 5 + ROUNDS * repeat
    sides = [Scheduled(make, device, steps, changes) for changes in (False, True)]
    for _ in range(5):
        for side in sides:
            side.step_us()
    rounds = []
    for _ in range(ROUNDS):
        times = [[side.step_us() for side in sides] for _ in range(repeat)]
        rounds.append([statistics.median(each) for each in zip(*times, strict=True)])
    constant, changing = (statistics.median(each) for each in zip(*rounds, strict=True))
    return constant, changing, [second / first for first, second in rounds]


def with_schedules(device: str, repeat: int) -> None:
    head = ["", "constant rate, us", "changed rate, us", "ratio", "by round"]
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    for name, make in SCHEDULED.items():
        try:
            constant, changing, ratios = scheduled(make, device, repeat)
        except makers.PeerMissingError as missing:
            print(f"| {name} | skipped: {missing} | | | |", flush=True)
            continue
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        values = [name, f"{constant:.0f}", f"{changing:.0f}", f"{statistics.median(ratios):.2f}", spread]
        print("| " + " | ".join(values) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--case", default="parakeet,lora,experts")
    parser.add_argument("--clip", action="store_true", help="clip_grad_norm, for ours alone")
    parser.add_argument("--repeat", type=int, default=50)
    parser.add_argument("--offload", action="store_true", help="whole iterations with states in host memory")
    parser.add_argument("--schedule", action="store_true", help="a learning rate that changes at every step")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    clip = 1.0 if asked.clip else None
    sides: dict[str, Callable[[list[Parameter]], torch.optim.Optimizer]] = {
        "octavo 8bit": lambda p: optim.AdamW8bit(p, min_8bit_size=0, clip_grad_norm=clip),
        "torch fused": lambda p: torch.optim.AdamW(p, fused=True),
    }
    if asked.offload:
        print(f"torch {torch.__version__}, {asked.device}; microseconds of an iteration of {LAYERS} layers")
        offloaded(asked.device, clip, asked.repeat)
        return
    if asked.schedule:
        counts = f"{TENSORS} tensors of {NUMEL} elements, {ROUNDS} rounds of {asked.repeat} steps"
        print(f"torch {torch.__version__}, {asked.device}; {counts}\n")
        with_schedules(asked.device, asked.repeat)
        return
    print(f"torch {torch.__version__}, {asked.device}; microseconds of a step: median, least")
    for case in asked.case.split(","):
        found = {name: measure(make, case, asked.device, asked.repeat) for name, make in sides.items()}
        print(
            f"{case:10s}" + "".join(f"  {name} {mid:6.0f} {low:6.0f}" for name, (mid, low) in found.items())
        )


if __name__ == "__main__":
    main()
