"""Times a Linear layer in FP8, forward and backward with its casts, and nn.Linear in bf16, in one run.

`always` uses FP8 for all three matmuls, `measure` for those that octavo.fp8 has timed as faster. torchao's
compiled float8 layers are measured too, if torchao is installed and --time-limit has not passed. The sides
run in turns. A forward and backward pass includes a cast of the weight, as in a loop that steps the optimizer
after each pass. The update of the scales, once per step for the complete model, is not timed.

The parts are timed separately: the casts of x, w and dy in both orientations, and the three matmuls in FP8
and in torch. `copy` is a copy on the device that reads and writes the same number of bytes as the casts, in
the same run. Host times are those of the calling thread with an idle queue: forward, backward, and the six
native calls alone. Rows named "graph" are the same passes captured in a CUDA graph, where the host needs one
launch; small layers need it.

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

import harness  # must be first: it adds the package of this tree to the import path
import torch
from octavo import fp8
from octavo.fp8 import choice_timing
from octavo.fp8.layer_cache import DY, Kinds, Layer, Shape, W, X, cached_layer
from report import option_parser
from stopwatch import Stopwatch, median_us, wait
from torch import Tensor, nn

# tokens x inputs x outputs; the last shape is BDH's encoder of 100.9M
SHAPES = "8192x1024x4096,8192x4096x4096,16384x4096x14336,16384x8192x8192,16384x512x65536"
PEERS = ("tensorwise", "rowwise")
MATMULS = ("forward", "dgrad", "wgrad")


@dataclass
class Row:
    shape: str
    side: str
    ms: float
    least_ms: float
    ratio: float  # bf16's time divided by this side's
    host_forward_us: float
    host_backward_us: float
    passes: str = ""  # the matmuls in FP8


@dataclass
class Parts:
    """Times in microseconds. GB/s count the bytes that a cast reads and writes."""

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
        """Does what a loop does between two passes, untimed: frees gradients and marks weights as changed."""
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
    """A pass in a CUDA graph, which the host launches once."""

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
        layer.weight = nn.Parameter(weight)  # the sides share the memory
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
            found.append(Side(f"torchao {name}", peer, x, dy, plain))
        except ImportError as error:
            report.left_out.append(f"torchao {name}: {error}")
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
    """Times bf16 and the first other side in CUDA graphs, in turns."""
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
    return "+".join(name for i, name in enumerate(MATMULS) if passes >> i & 1) or "none"


def parts_of(shape: str, x: Tensor, weight: Tensor, recipe: fp8.Recipe, repeat: int) -> Parts:
    device, (tokens, inputs), outputs = x.device, x.shape, weight.shape[0]

    def time_us(work: Callable[[], Any]) -> float:
        return median_us(device, work, repeat)

    kinds = Kinds(device, x.dtype, weight.dtype, x.dtype)
    layout = Shape(1, tokens, inputs, outputs, False, False, False)
    layer = cached_layer(kinds, recipe.numbers, layout, 7)
    with torch.no_grad():
        times = choice_timing.times_of(layer, x.detach()[None], weight.detach().t()[None], time_us)
        cast, gb_s, copies = {}, {}, {}
        elements = (tokens * inputs, inputs * outputs, tokens * outputs)
        for i, name in enumerate(("x", "w", "dy")):
            moved = 4 * elements[i]  # bf16 is read once, two orientations are written
            source = torch.empty(moved // 2, dtype=torch.uint8, device=device).fill_(1)
            target = torch.empty_like(source)
            cast[name] = times.cast_two[i]
            gb_s[name] = 1e-3 * moved / times.cast_two[i]
            copies[name] = 1e-3 * moved / time_us(lambda to=target, source=source: to.copy_(source))
        native = native_host_us(layer, x, weight)
    plain, in_fp8 = (dict(zip(MATMULS, each, strict=True)) for each in (times.plain, times.fp8))
    return Parts(shape, plain, in_fp8, cast, gb_s, copies, native)


def native_host_us(layer: Layer, x: Tensor, weight: Tensor) -> float:
    """Returns the calling thread's microseconds in the three casts and three matmuls of a layer."""
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
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--shapes", default=SHAPES, help="tokens x inputs x outputs, comma-separated")
    add("--recipe", default="delayed", choices=("delayed", "current", "rowwise", "block"))
    add("--format", default="hybrid", choices=("hybrid", "e4m3", "e5m2"))
    add("--select", default="always,measure", help="selections to measure, in this order")
    add("--peers", default=",".join(PEERS), help="torchao's recipes, comma-separated; empty for none")
    add("--repeat", type=int, default=15)
    add("--warm-up", type=int, default=4)
    add("--time-limit", type=float, default=35, help="seconds after which peers are skipped")
    add("--json", action="store_true")
    return parser.parse_args(arguments)


def measured(options: argparse.Namespace) -> Report:
    device, start = torch.device(options.device), time.perf_counter()
    chosen = {"format": options.format, "recipe": options.recipe}
    recipes = {f"octavo {how}": fp8.Recipe(**chosen, select=how) for how in options.select.split(",") if how}
    report = Report(harness.device_name(device), torch.__version__, f"{options.recipe} {options.format}")
    peers = [name for name in options.peers.split(",") if name]
    for shape in options.shapes.split(","):
        tokens, inputs, outputs = map(int, shape.split("x"))
        generator = torch.Generator(device).manual_seed(1)
        x, dy = (
            torch.randn(tokens, size, generator=generator, device=device, dtype=torch.bfloat16)
            for size in (inputs, outputs)
        )
        x.requires_grad_()
        late = time.perf_counter() - start > options.time_limit
        if late and peers:
            report.left_out.append(f"torchao at {shape}: after {options.time_limit:g} s")
        sides = sides_of(x, dy, recipes, () if late else peers, report)
        report.rows += compare(shape, sides, options.repeat, options.warm_up)
        always = fp8.Recipe(**chosen, select="always")
        report.parts.append(parts_of(shape, x, sides[0].plain.weight, always, options.repeat))
        del sides, x, dy
    return report


ROW_CELLS = {
    "tokens x inputs x outputs": lambda row: row.shape,
    "side": lambda row: row.side,
    "ms": lambda row: f"{row.ms:.3f}",
    "least": lambda row: f"{row.least_ms:.3f}",
    "bf16 / it": lambda row: f"{row.ratio:.2f}",
    "host us": lambda row: f"{row.host_forward_us:.0f}",
    "backward": lambda row: f"{row.host_backward_us:.0f}",
    "in FP8": lambda row: row.passes,
}
PART_CELLS: dict[str, Callable[[Parts], str]] = {
    "tokens x inputs x outputs": lambda part: part.shape,
    **{f"{n} bf16": lambda part, n=n: f"{part.plain_us[n]:.0f}" for n in MATMULS},
    **{f"{n} fp8": lambda part, n=n: f"{part.fp8_us[n]:.0f}" for n in MATMULS},
    **{f"cast {n}": lambda part, n=n: f"{part.cast_us[n]:.0f}" for n in ("x", "w", "dy")},
    **{
        f"{n} GB/s (copy)": lambda part, n=n: f"{part.cast_gb_s[n]:.0f} ({part.copy_gb_s[n]:.0f})"
        for n in ("x", "w", "dy")
    },
    "native host us": lambda part: f"{part.native_host_us:.0f}",
}


def run(arguments: Sequence[str] | None = None) -> Report:
    options = parse(arguments)
    report = measured(options)
    for line in report.left_out:
        print(f"skipped: {line}", file=sys.stderr)
    if options.json:
        print(json.dumps(asdict(report)))
        return report
    print(f"{report.gpu}, torch {report.torch}, {report.recipe}")
    print(harness.table(report.rows, ROW_CELLS))
    print("\nparts in us; casts, and copies of the same number of bytes, in GB/s")
    print(harness.table(report.parts, PART_CELLS))
    return report


if __name__ == "__main__":
    run()
