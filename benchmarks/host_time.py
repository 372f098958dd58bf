"""Measures what a step of the Python package costs the calling thread, with many tiny tensors.

Cases: `parakeet` (646 tensors), `lora` (3,072), `experts` (64 experts of ten tensors each; another eight of
them have gradients at each step). Gradients keep their addresses, as a GPU's allocator arranges it in a
training loop. On the CPU the figure is the thread's own time including kernels of one element, so that other
work on the machine has little effect. On a GPU it is the wall clock of the call with an idle queue: kernels
start late if the host is slow. torch.optim.AdamW(fused=True) is measured in the same run.

--offload measures an iteration over 400 layers of two tensors each, with states in host memory. Hooks of
parameters and modules run in both passes, so the figure is the time of forward, backward, step and zero_grad
minus the time of the passes without an optimizer.

--schedule steps 646 tensors of 4,096 elements with torch, Octavo and torchao: with a constant learning rate
and, in turns, with a rate that CosineAnnealingLR.step() changes after every step. The ratio is that of
step() alone; its range is that of the rounds.

    .venv/bin/python benchmarks/host_time.py [--device cuda] [--clip] [--repeat 50] [--offload | --schedule]
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import harness  # noqa: F401  must be first: it adds the package of this tree to the import path
import makers
import torch
from report import markdown_head, markdown_row, option_parser
from torch.nn import Parameter

from octavo import optim  # isort: skip

CASES = {"parakeet": 646, "lora": 3072, "experts": 6 + 640}
_ACTIVE = 8
_WARM_UP = 5


def active(case: str, params: list[Parameter]) -> Iterator[list[Parameter]]:
    """Yields the parameters that have gradients at each step."""
    if case != "experts":
        while True:
            yield params
    experts = [params[6 + 10 * i : 16 + 10 * i] for i in range(64)]
    generator = random.Random(0)
    yield params  # the first step creates all states
    while True:
        yield params[:6] + [p for expert in generator.sample(experts, _ACTIVE) for p in expert]


def host_us(device: str, work: Callable[[], object]) -> float:
    """Returns the microseconds of a call: the thread's CPU time, or the wall clock on an idle GPU."""
    clock = time.thread_time if device == "cpu" else time.perf_counter
    if device != "cpu":
        torch.cuda.synchronize()
    start = clock()
    work()
    return 1e6 * (clock() - start)


def measure(
    make: Callable[[list[Parameter]], torch.optim.Optimizer], case: str, device: str, repeat: int
) -> tuple[float, float]:
    """Returns the median and the least microseconds of a step."""
    params = [Parameter(torch.zeros(1, device=device)) for _ in range(CASES[case])]
    optimizer, times = make(params), []
    grads = {p: torch.ones_like(p) for p in params}
    for with_grads in itertools.islice(active(case, params), repeat + _WARM_UP):
        for p in params:
            p.grad = None
        for p in with_grads:
            p.grad = grads[p]
        times.append(host_us(device, optimizer.step))
    return statistics.median(times[_WARM_UP:]), min(times[_WARM_UP:])


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
    """Returns the least microseconds of an iteration; without options, those of the passes alone."""
    net = torch.nn.Sequential(*(torch.nn.Linear(1, 1, device=device) for _ in range(LAYERS)))
    given, optimizer = dict(options or {}), None
    attached = given.pop("attach", False)
    if options is not None:
        sizes = {"min_8bit_size": 0, **({"min_offload_size": 0} if "offload" in given else {})}
        optimizer = optim.AdamW8bit(net.parameters(), **sizes, **given)
        if attached:
            optimizer.attach(net)
    x = torch.ones(1, 1, device=device)

    def iteration() -> None:
        net(x).sum().backward()
        if optimizer is not None:
            optimizer.step()
        (optimizer or net).zero_grad()

    return min([host_us(device, iteration) for _ in range(repeat + _WARM_UP)][_WARM_UP:])


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
TENSORS, NUMEL, ROUNDS = 646, 4096, 5  # the case of --schedule


class Scheduled:
    """Parameters with gradients, and an optimizer whose learning rate is constant or always changes."""

    def __init__(self, make: makers.Make, device: str, steps: int, changes: bool) -> None:
        params = [Parameter(torch.zeros(NUMEL, device=device)) for _ in range(TENSORS)]
        for param in params:
            param.grad = torch.ones_like(param)
        self._optimizer, self._device = make(params, 1e-3), device
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR
        self._scheduler = cosine(self._optimizer, T_max=steps) if changes else None

    def step_us(self) -> float:
        elapsed = host_us(self._device, self._optimizer.step)
        if self._scheduler is not None:
            self._scheduler.step()
        return elapsed


def scheduled(make: makers.Make, device: str, repeat: int) -> tuple[float, float, list[float]]:
    """Returns the microseconds of a step with a constant and with a changing rate, and the ratio by round."""
    steps = _WARM_UP + ROUNDS * repeat
    sides = [Scheduled(make, device, steps, changes) for changes in (False, True)]
    for _ in range(_WARM_UP):
        for side in sides:
            side.step_us()
    rounds = []
    for _ in range(ROUNDS):
        times = [[side.step_us() for side in sides] for _ in range(repeat)]
        rounds.append([statistics.median(each) for each in zip(*times, strict=True)])
    constant, changing = (statistics.median(each) for each in zip(*rounds, strict=True))
    return constant, changing, [second / first for first, second in rounds]


def with_schedules(device: str, repeat: int) -> None:
    print(markdown_head(["", "constant rate, us", "changed rate, us", "ratio", "by round"]))
    for name, make in SCHEDULED.items():
        try:
            constant, changing, ratios = scheduled(make, device, repeat)
        except makers.PeerMissingError as missing:
            print(markdown_row([name, f"skipped: {missing}", "", "", ""]), flush=True)
            continue
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        cells = [name, f"{constant:.0f}", f"{changing:.0f}", f"{statistics.median(ratios):.2f}", spread]
        print(markdown_row(cells), flush=True)


def main() -> None:
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("--device", default="cpu", choices=("cpu", "cuda"))
    add("--case", default=",".join(CASES), help="comma-separated (default: all)")
    add("--clip", action="store_true", help="clip_grad_norm, only for octavo")
    add("--repeat", type=int, default=50)
    add("--offload", action="store_true", help="complete iterations with states in host memory")
    add("--schedule", action="store_true", help="a learning rate that changes at every step")
    options = parser.parse_args()
    torch.set_num_threads(1)
    clip = 1.0 if options.clip else None
    where = f"torch {torch.__version__}, {options.device}"
    if options.offload:
        print(f"{where}; microseconds of an iteration of {LAYERS} layers")
        return offloaded(options.device, clip, options.repeat)
    if options.schedule:
        counts = f"{TENSORS} tensors of {NUMEL} elements, {ROUNDS} rounds of {options.repeat} steps"
        print(f"{where}; {counts}\n")
        return with_schedules(options.device, options.repeat)
    sides: dict[str, Callable[[list[Parameter]], torch.optim.Optimizer]] = {
        "octavo 8bit": lambda p: optim.AdamW8bit(p, min_8bit_size=0, clip_grad_norm=clip),
        "torch fused": lambda p: torch.optim.AdamW(p, fused=True),
    }
    print(f"{where}; microseconds of a step: median, least")
    for case in options.case.split(","):
        found = {name: measure(make, case, options.device, options.repeat) for name, make in sides.items()}
        print(
            f"{case:10s}" + "".join(f"  {name} {mid:6.0f} {low:6.0f}" for name, (mid, low) in found.items())
        )


if __name__ == "__main__":
    main()
