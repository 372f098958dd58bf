"""Times the optimizer's step, and torch's fused AdamW, while a language model with many words trains.

The model is an untied vocabulary of 50,000 words of width 512 around a GRU of four layers: 57.5M fp32
parameters. Words are drawn by Zipf's law from a separate generator. Every second word is determined by the
word before it, so that the model can learn something. A batch reaches few rows of the embedding: most rows
have no gradient, their moments decay, and the moments of words that never occurred are zero. CUDA events time
`optimizer.step()` from step 50 to step 500 of a real run. Every side trains the same model on the same words.
On a CPU the times are wall clock times.

This model is so small that the GPU waits for the host, and then the events time the host. With `--ahead 1`
the GPU pauses for a millisecond before each timed step, so that the step is already queued when it begins, as
it is after the backward pass of a larger model.

PYTHONPATH=adapters/python python benchmarks/language_model.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import harness  # must be first: it adds the package of this tree to the import path
import makers
import torch
from report import markdown, option_parser, require_positive, select, write_json
from stopwatch import Stopwatch, release
from torch import nn
from workloads import zipf

LR = 1e-3
CYCLES = 2e9  # clock cycles of a GPU per second, approximately
BASE = "torch fused"
SIDES: dict[str, makers.Make] = {
    BASE: makers.torch_fused,
    **{f"octavo {state}": makers.octavo(state) for state in ("fp32", "bf16", "8bit", "4bit", "fp8")},
}


class LanguageModel(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.body = nn.GRU(width, width, layers, batch_first=True)
        self.output = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.output(self.body(self.embedding(words))[0])


def make_words(vocabulary: int, steps: int, batch: int, length: int, seed: int) -> torch.Tensor:
    """Returns [steps, batch, length + 1] words: drawn by Zipf's law, or determined by the word before."""
    generator = torch.Generator().manual_seed(seed)
    cpu = torch.device("cpu")
    names = torch.randperm(vocabulary, generator=generator)  # so that frequent words have random numbers

    def draw(count: int) -> torch.Tensor:
        weights = zipf(vocabulary, cpu)
        return names[torch.multinomial(weights, count, replacement=True, generator=generator)]

    follower = draw(vocabulary)
    rows = steps * batch
    words = draw(rows * (length + 1)).view(rows, length + 1)
    follows = torch.rand(rows, length + 1, generator=generator) < 0.5
    for at in range(1, length + 1):
        words[:, at] = torch.where(follows[:, at], follower[words[:, at - 1]], words[:, at])
    return words.view(steps, batch, length + 1)


@dataclass
class Result:
    side: str
    ms_median: float = 0.0
    ms_min: float = 0.0
    host_ms_median: float = 0.0
    first_loss: float = 0.0
    last_loss: float = 0.0  # a mean of up to 20 steps, as is first_loss
    times_ms: list[float] = field(default_factory=list)


def train(
    side: str, words: torch.Tensor, options: argparse.Namespace, device: torch.device
) -> tuple[Result, int]:
    """Returns the result and the number of parameters."""
    torch.manual_seed(0)
    with device:
        model = LanguageModel(options.vocabulary, options.width, options.layers)
    optimizer = SIDES[side](model.parameters(), LR)
    watch, host, losses = Stopwatch(device), list[float](), list[torch.Tensor]()

    def step() -> None:
        start = time.perf_counter()
        optimizer.step()
        host.append(1e3 * (time.perf_counter() - start))

    for at, batch in enumerate(words):
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        losses.append(loss.detach())
        if at < options.from_step:
            optimizer.step()
        else:
            if options.ahead > 0 and device.type == "cuda":
                torch.cuda._sleep(int(options.ahead * 1e-3 * CYCLES))
            watch.time(step)
        optimizer.zero_grad()
    times, all_losses = watch.ms(), torch.stack(losses).tolist()
    few = min(20, len(all_losses))
    result = Result(
        side,
        statistics.median(times),
        min(times),
        statistics.median(host),
        statistics.fmean(all_losses[:few]),
        statistics.fmean(all_losses[-few:]),
        times,
    )
    return result, sum(param.numel() for param in model.parameters())


def table(results: Sequence[Result]) -> str:
    base = next((each.ms_median for each in results if each.side == BASE), None)
    rows = []
    for each in results:
        ratio = f"{each.ms_median / base:.2f}" if base else "-"
        values = (each.ms_min, each.host_ms_median, each.first_loss, each.last_loss)
        rows.append([each.side, f"{each.ms_median:.3f}", ratio, *(f"{value:.3f}" for value in values)])
    head = ["optimizer", "ms", f"of {BASE}", "least ms", "host ms", "loss at first", "at last"]
    return markdown(head, rows)


def parse_options() -> argparse.Namespace:
    parser = option_parser(__doc__)
    add = parser.add_argument
    add("--side", help="only sides whose name contains one of these, comma-separated: octavo 8bit,fused")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--vocabulary", type=int, default=50_000, help="words (default 50000)")
    add("--width", type=int, default=512, help="width of embedding, body and output (default 512)")
    add("--layers", type=int, default=4, help="layers of the body (default 4)")
    add("--batch", type=int, default=16, help="texts in a step (default 16)")
    add("--length", type=int, default=32, help="words of a text (default 32)")
    add("--steps", type=int, default=500, help="steps of each run (default 500)")
    add("--from-step", type=int, default=50, help="first timed step (default 50)")
    add("--ahead", type=float, default=0.0, help="pause of the GPU before a timed step, in ms (default 0)")
    add("--json", help="also write everything to this file")
    options = parser.parse_args()
    require_positive(parser, options, "vocabulary", "width", "layers", "batch", "length", "steps")
    if not 0 <= options.from_step < options.steps:
        parser.error(f"--from-step: got {options.from_step}, expected 0 to {options.steps - 1}")
    options.sides = select(parser, "--side", SIDES, options.side)
    return options


def main() -> int:
    options = parse_options()
    device = torch.device(options.device)
    torch.set_float32_matmul_precision("high")
    words = make_words(options.vocabulary, options.steps, options.batch, options.length, seed=1).to(device)
    inputs = words[:, :, :-1]
    reached = inputs.unique().numel()
    in_batch = statistics.fmean(batch.unique().numel() for batch in inputs[: options.from_step + 1])
    results: list[Result] = []
    params = 0
    for side in options.sides:
        result, params = train(side, words, options, device)
        results.append(result)
        print(f"{side}: {result.ms_median:.3f} ms", file=sys.stderr, flush=True)
        release(device)
    about: dict[str, Any] = {
        "device": harness.device_name(device),
        "torch": torch.__version__,
        "params": params,
        "rows": options.vocabulary,
        "rows_in_batch": in_batch,
        "rows_ever": reached,
    }
    print(f"{about['device']}, torch {torch.__version__}, {params:,} fp32 parameters")
    print(f"of {options.vocabulary:,} words, a batch has {in_batch:.0f} and the run {reached:,}", end="")
    print(f"; medians of steps {options.from_step} to {options.steps}\n\n{table(results)}")
    write_json(options.json, {**about, "sides": [asdict(each) for each in results]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
