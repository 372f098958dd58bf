"""A Linear layer in FP8, forward and backward with its casts, beside nn.Linear in bf16 in the same run.

`always` has all three products in FP8, `measure` those that octavo.fp8 has timed as faster. torchao's float8
layers are beside them where it is installed, compiled, as long as --time-limit has not passed. Sides take
turns. A pass counts with a cast of the weight, as in a loop that steps the optimizer after each; what is done
once per step for a whole model (the update of scales) is outside.

Parts are timed alone: the casts of x, w and dy in both orientations, the three products in FP8, and as torch
makes them. `copy` is a copy on the device that reads and writes as many bytes as the casts, in the same run.
Host times are of the calling thread with an idle queue: forward, backward, and the six native calls alone.
Rows named "graph" are the same passes captured in a CUDA graph, where the host costs one launch: what small
layers need.

    PYTHONPATH=adapters/python python benchmarks/fp8_linear.py [--recipe delayed] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import harness  # first: it finds the package of this tree
import torch
from octavo import fp8
from octavo.fp8 import choice_timing
from octavo.fp8.layer_cache import DY, Kinds, Layer, Shape, W, X, cached_layer
from stopwatch import Stopwatch, wait
from torch import Tensor, nn

# tokens x inputs x outputs; the last is BDH's encoder of 100.9M
SHAPES = "8192x1024x4096,8192x4096x4096,16384x4096x14336,16384x8192x8192,16384x512x65536"
PEERS = ("tensorwise", "rowwise")


@dataclass
class Row:
    shape: str
    side: str
    ms: float
    least_ms: float
    ratio: float  # of bf16's time to this one's
    host_forward_us: float
    host_backward_us: float
    passes: str = ""  # in FP8


@dataclass
class Parts:
    """Microseconds; GB/s are of the bytes that a cast reads and writes."""

    shape: str
    plain_us: dict[str, float]
    fp8_us: dict[str, float]
    cast_us: dict[str, float]
    cast_gb_s: dict[str, float]
    copy_gb_s: dict[str, float]
    native_host_us: float


@dataclass
class Report:
    gpu: str
    torch: str
    recipe: str
    rows: list[Row] = field(default_factory=list)
    parts: list[Parts] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


class Side:
    """A layer with its input and the gradient of its output."""

    def __init__(self, name: str, layer: nn.Module, x: Tensor, dy: Tensor, plain: nn.Linear) -> None:
        self.name, self.x, self.dy, self.plain = name, x, dy, plain
        self.layer: Callable[[Tensor], Tensor] = layer
        self.module = layer

    def clear(self) -> None:
        """What a loop does between two passes, and is not timed: gradients go, weights have changed."""
        for param in (self.x, *self.module.parameters()):
            param.grad = None
        if isinstance(self.module, fp8.Linear):
            fp8.end_step()

    def pass_(self) -> None:
        self.layer(self.x).backward(self.dy)  # type: ignore[no-untyped-call]

    def captured(self) -> Captured:
        self.clear()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.pass_()
        return Captured(f"{self.name}, graph", graph, passes_of(self))


@dataclass
class Captured:
    """A pass in a CUDA graph: the host launches it once, and nothing of it is waited for."""

    name: str
    graph: torch.cuda.CUDAGraph
    passes: str


def torchao_layer(plain: nn.Linear, recipe: str) -> nn.Module:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    holder = nn.Sequential(plain)
    convert_to_float8_training(holder, config=Float8LinearConfig.from_recipe_name(recipe))
    return torch.compile(holder, dynamic=False)  # type: ignore[return-value]


def linear(inputs: int, outputs: int, device: torch.device, weight: Tensor | None = None) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=False, device=device, dtype=torch.bfloat16)
    if weight is not None:
        layer.weight = nn.Parameter(weight)  # sides share the memory
    return layer


def sides_of(
    x: Tensor, dy: Tensor, recipes: dict[str, fp8.Recipe], peers: Sequence[str], report: Report
) -> list[Side]:
    inputs, outputs, device = x.shape[-1], dy.shape[-1], x.device
    plain = linear(inputs, outputs, device)
    weight = plain.weight.detach()
    found = [Side("bf16", plain, x, dy, plain)]
    for name, recipe in recipes.items():
        layer = fp8.convert(linear(inputs, outputs, device, weight.clone()), recipe)
        found.append(Side(name, layer, x, dy, plain))
    for name in peers:
        try:
            peer = torchao_layer(linear(inputs, outputs, device, weight), name)
        except ImportError as error:
            report.left_out.append(f"torchao {name}: {error}")
            continue
        found.append(Side(f"torchao {name}", peer, x, dy, plain))
    return found


def host_us(side: Side, repeat: int = 7) -> tuple[float, float]:
    device, times = side.x.device, []
    for _ in range(repeat):
        side.clear()
        wait(device)
        start = time.perf_counter()
        y = side.layer(side.x)
        middle = time.perf_counter()
        y.backward(side.dy)  # type: ignore[no-untyped-call]
        times.append((1e6 * (middle - start), 1e6 * (time.perf_counter() - middle)))
        del y
    wait(device)
    return tuple(statistics.median(each) for each in zip(*times, strict=True))  # type: ignore[return-value]


def compare(shape: str, sides: list[Side], rounds: int, warm_up: int) -> list[Row]:
    device = sides[0].x.device
    watches = {side.name: Stopwatch(device) for side in sides}
    for turn in range(warm_up + rounds):
        for side in sides:
            side.clear()
            if turn < warm_up:
                side.pass_()
            else:
                watches[side.name].time(side.pass_)
    rows, base = compare_captured(shape, sides, rounds), 0.0
    for side in sides:
        ms = watches[side.name].ms()
        median = statistics.median(ms)
        base = base or median
        rows.append(Row(shape, side.name, median, min(ms), base / median, *host_us(side), passes_of(side)))
    return rows


def compare_captured(shape: str, sides: list[Side], rounds: int) -> list[Row]:
    """bf16 and the first other side, in graphs that take turns."""
    device = sides[0].x.device
    if device.type != "cuda":
        return []
    both = [side.captured() for side in sides[:2]]
    watches = [Stopwatch(device) for _ in both]
    for turn in range(rounds + 2):
        for watch, side in zip(watches, both, strict=True):
            side.graph.replay() if turn < 2 else watch.time(side.graph.replay)
    rows, base = [], 0.0
    for watch, side in zip(watches, both, strict=True):
        wait(device)
        start = time.perf_counter()
        side.graph.replay()
        host = 1e6 * (time.perf_counter() - start)
        ms = watch.ms()
        base = base or statistics.median(ms)
        row = (statistics.median(ms), min(ms), base / statistics.median(ms), host, 0.0, side.passes)
        rows.append(Row(shape, side.name, *row))
    return rows


def passes_of(side: Side) -> str:
    if not isinstance(side.module, fp8.Linear):
        return ""
    made = [each.layer for each in side.module.fp8_site.made.values()]
    passes = 0 if not made or made[-1] is None else made[-1].passes
    return "+".join(name for i, name in enumerate(("forward", "dgrad", "wgrad")) if passes >> i & 1) or "none"


def parts_of(shape: str, x: Tensor, weight: Tensor, recipe: fp8.Recipe, repeat: int) -> Parts:
    device, (tokens, inputs), outputs = x.device, x.shape, weight.shape[0]

    def time_us(work: Callable[[], Any]) -> float:
        watch = Stopwatch(device)
        for _ in range(repeat + 2):
            watch.time(work)
        return 1e3 * statistics.median(watch.ms()[2:])

    kinds = Kinds(device, x.dtype, weight.dtype, x.dtype)
    layout = Shape(1, tokens, inputs, outputs, False, False, False)
    layer = cached_layer(kinds, recipe.numbers, layout, 7)
    with torch.no_grad():
        times = choice_timing.times_of(layer, x.detach()[None], weight.detach().t()[None], time_us)
        cast, gb_s, copies = {}, {}, {}
        elements = (tokens * inputs, inputs * outputs, tokens * outputs)
        for i, name in enumerate(("x", "w", "dy")):
            moved = 4 * elements[i]  # bf16 read once, two orientations written
            source = torch.empty(moved // 2, dtype=torch.uint8, device=device).fill_(1)
            target = torch.empty_like(source)
            cast[name] = times.cast_two[i]
            gb_s[name] = 1e-3 * moved / times.cast_two[i]
            copies[name] = 1e-3 * moved / time_us(lambda to=target, source=source: to.copy_(source))
        native = native_host_us(layer, x, weight)
    names = ("forward", "dgrad", "wgrad")
    return Parts(
        shape,
        dict(zip(names, times.plain, strict=True)),
        dict(zip(names, times.fp8, strict=True)),
        cast,
        gb_s,
        copies,
        native,
    )


def native_host_us(layer: Layer, x: Tensor, weight: Tensor) -> float:
    """The calling thread's time of the three casts and three matmuls of a layer."""
    states = torch.ones(3, 2 + layer.numbers.length, dtype=torch.float32, device=x.device)
    dy = torch.zeros(layer.sizes[0], dtype=x.dtype, device=x.device)
    state, stream = states.data_ptr(), layer.stream()
    (_a, a, a_transposed), (_w, w, w_transposed), (_d, d, d_transposed) = map(layer.empty_pair, range(3))
    codes, transposed = (a, w, d), (a_transposed, w_transposed, d_transposed)
    times = []
    for _ in range(7):
        wait(x.device)
        start = time.perf_counter()
        layer.cast(X, x, a, a_transposed, state, True, stream)
        layer.cast(W, weight, w, w_transposed, state, True, stream)
        layer.matmul(0, codes, transposed, stream)
        layer.cast(DY, dy, d, d_transposed, state, True, stream)
        layer.matmul(1, codes, transposed, stream)
        layer.matmul(2, codes, transposed, stream)
        times.append(1e6 * (time.perf_counter() - start))
    wait(x.device)
    return statistics.median(times)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shapes", default=SHAPES, help="tokens x inputs x outputs, with commas between")
    parser.add_argument("--recipe", default="delayed", choices=("delayed", "current", "rowwise", "block"))
    parser.add_argument("--format", default="hybrid", choices=("hybrid", "e4m3", "e5m2"))
    parser.add_argument("--select", default="always,measure", help="which of them, in this order")
    parser.add_argument("--peers", default=",".join(PEERS), help="torchao's recipes; empty: none")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--warm-up", type=int, default=4)
    parser.add_argument("--time-limit", type=float, default=35, help="seconds after which peers are left out")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def measured(given: argparse.Namespace) -> Report:
    device, start = torch.device(given.device), time.perf_counter()
    chosen = {"format": given.format, "recipe": given.recipe}
    recipes = {f"octavo {how}": fp8.Recipe(**chosen, select=how) for how in given.select.split(",") if how}
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else harness.cpu_name()
    report = Report(gpu, torch.__version__, f"{given.recipe} {given.format}")
    peers = [name for name in given.peers.split(",") if name]
    for shape in given.shapes.split(","):
        tokens, inputs, outputs = map(int, shape.split("x"))
        generator = torch.Generator(device).manual_seed(1)
        x, dy = (
            torch.randn(tokens, size, generator=generator, device=device, dtype=torch.bfloat16)
            for size in (inputs, outputs)
        )
        x.requires_grad_()
        late = time.perf_counter() - start > given.time_limit
        if late and peers:
            report.left_out.append(f"torchao at {shape}: after {given.time_limit:g} s")
        sides = sides_of(x, dy, recipes, () if late else peers, report)
        report.rows += compare(shape, sides, given.repeat, given.warm_up)
        always = fp8.Recipe(**chosen, select="always")
        report.parts.append(parts_of(shape, x, sides[0].plain.weight, always, given.repeat))
        del sides, x, dy
    return report


def shown(report: Report) -> None:
    print(f"{report.gpu}, torch {report.torch}, {report.recipe}")
    header = [
        "tokens x inputs x outputs",
        "side",
        "ms",
        "least",
        "bf16 / it",
        "host us",
        "backward",
        "in FP8",
    ]
    rows = [
        [
            row.shape,
            row.side,
            f"{row.ms:.3f}",
            f"{row.least_ms:.3f}",
            f"{row.ratio:.2f}",
            f"{row.host_forward_us:.0f}",
            f"{row.host_backward_us:.0f}",
            row.passes,
        ]
        for row in report.rows
    ]
    print(harness.table(header, rows))
    print("\nparts, in us; casts and copies of as many bytes, in GB/s")
    names = ("forward", "dgrad", "wgrad")
    header = ["tokens x inputs x outputs", *(f"{n} bf16" for n in names), *(f"{n} fp8" for n in names)]
    header += [f"cast {n}" for n in ("x", "w", "dy")] + [f"{n} GB/s (copy)" for n in ("x", "w", "dy")]
    rows = [
        [
            part.shape,
            *(f"{part.plain_us[n]:.0f}" for n in names),
            *(f"{part.fp8_us[n]:.0f}" for n in names),
            *(f"{us:.0f}" for us in part.cast_us.values()),
            *(f"{part.cast_gb_s[n]:.0f} ({part.copy_gb_s[n]:.0f})" for n in ("x", "w", "dy")),
            f"{part.native_host_us:.0f}",
        ]
        for part in report.parts
    ]
    print(harness.table([*header, "native host us"], rows))


def run(arguments: Sequence[str] | None = None) -> Report:
    given = parse(arguments)
    report = measured(given)
    for line in report.left_out:
        print(f"left out: {line}", file=sys.stderr)
    if given.json:
        print(json.dumps(asdict(report)))
    else:
        shown(report)
    return report


if __name__ == "__main__":
    run()
