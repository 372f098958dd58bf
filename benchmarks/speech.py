"""Times training steps of Parakeet TDT 0.6B: transformers' ParakeetForTDT, and then `octavo bench speech`.

Weights, features and labels are random; all clips have one length. transformers' side is its model with its
own loss (sigma 0.02), SDPA attention and torch's fused AdamW. Its logits are freed before the backward pass,
which is in its favour. Times are from CUDA events, on a CPU from the wall clock; the peak is that of torch's
allocator. Octavo's command starts after the other model has been freed.

python benchmarks/speech.py --clips 32 --checkpointing off,on
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import harness
import torch
from makers import PeerMissingError, imported
from report import counts, markdown, option_parser, require_positive, run_octavo, some_of, write_json
from stopwatch import Stopwatch, peak_bytes, release, reset_peak, wait

SIGMA = 0.02
BANDS = 128
PARTS = (
    "encoder forward",
    "head and loss forward",
    "head and loss backward",
    "encoder backward",
    "optimizer",
)
# Octavo's parts are finer; each is added to the part with this index.
OCTAVO_PARTS = {
    "encoder_forward_ms": 0,
    "predictor_forward_ms": 1,
    "loss_forward_ms": 1,
    "loss_backward_ms": 2,
    "predictor_backward_ms": 2,
    "encoder_backward_ms": 3,
    "optimizer_ms": 4,
}


@dataclass
class Row:
    side: str
    checkpointing: str
    clips: int
    clips_per_second: float = 0.0
    step_ms: float = 0.0
    peak_bytes: int = 0  # 0 on a CPU
    parts_ms: list[float] = field(default_factory=list)  # the times of PARTS
    error: str = ""


class Marks:
    """Points of each step in the order of the device's work; marking does not wait."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._watch = device, Stopwatch(device)
        self._steps: list[list[Any]] = []

    def begin(self) -> None:
        self._steps.append([])
        self.mark()

    def mark(self) -> None:
        self._steps[-1].append(self._watch.mark())

    def mean_ms(self) -> list[float]:
        wait(self._device)
        between = self._watch.ms_between
        each = [[between(a, b) for a, b in itertools.pairwise(step)] for step in self._steps]
        return [sum(values) / len(values) for values in zip(*each, strict=True)]


def vocabulary(options: argparse.Namespace) -> int:
    return {"v3": 8192, "v2": 1024, "tiny": 64}[options.size]


def build_peer(options: argparse.Namespace, checkpointing: str, device: torch.device) -> torch.nn.Module:
    from transformers import ParakeetEncoderConfig, ParakeetForTDT, ParakeetTDTConfig

    tokens, tiny = vocabulary(options), options.size == "tiny"
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    encoder = ParakeetEncoderConfig(
        num_mel_bins=BANDS,
        attention_bias=False,
        convolution_bias=False,
        scale_input=False,
        layerdrop=0.0,
        **(small | {"subsampling_conv_channels": 8} if tiny else {}),
    )
    config = ParakeetTDTConfig(
        encoder_config=encoder,
        vocab_size=tokens + 1,
        blank_token_id=tokens,
        pad_token_id=2,
        **({"decoder_hidden_size": 64} if tiny else {}),
    )
    with device:
        model = ParakeetForTDT(config)
    if options.precision == "bf16":
        model = model.to(torch.bfloat16)
    if checkpointing == "on":
        model.gradient_checkpointing_enable()
    return model.train()


class PeerModel:
    """transformers' model and a batch of random features on the device."""

    def __init__(self, options: argparse.Namespace, checkpointing: str, clips: int) -> None:
        self.device = torch.device(options.device)
        self.model: Any = build_peer(options, checkpointing, self.device)
        size = (clips, round(100 * options.seconds))
        dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
        self.features = torch.randn(*size, BANDS, device=self.device, dtype=dtype)
        self.mask = torch.ones(*size, device=self.device, dtype=torch.bool)


class Peer(PeerModel):
    """Training steps of transformers' model."""

    def __init__(self, options: argparse.Namespace, checkpointing: str, clips: int) -> None:
        super().__init__(options, checkpointing, clips)
        self.mixed = options.precision == "autocast"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        tokens = vocabulary(options)
        # Label 2 is the padding.
        self.labels = torch.randint(3, tokens, (clips, options.tokens), device=self.device)
        start = torch.full((clips, 1), tokens, device=self.device)
        self.inputs = torch.cat([start, self.labels], dim=1)

    def loss(self, marks: Marks) -> torch.Tensor:
        model, config = self.model, self.model.config
        encoded = model.get_audio_features(input_features=self.features, attention_mask=self.mask)
        encoded.pooler_output.register_hook(lambda grad: marks.mark())  # the encoder's backward pass begins
        marks.mark()
        logits = model.joint(
            encoder_hidden_states=encoded.pooler_output[:, :, None, :],
            decoder_hidden_states=model.decoder(self.inputs)[:, None, :, :],
        )
        loss: torch.Tensor = model.loss_function(
            token_logits=logits[..., : config.vocab_size],
            duration_logits=logits[..., config.vocab_size :],
            labels=self.labels,
            logit_lengths=encoded.attention_mask.sum(-1),
            label_lengths=(self.labels != config.pad_token_id).sum(-1),
            blank_token_id=config.blank_token_id,
            durations=config.durations,
            sigma=SIGMA,
        )
        marks.mark()
        return loss

    def step(self, marks: Marks) -> None:
        marks.begin()
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.mixed):
            loss = self.loss(marks)
        loss.backward()
        marks.mark()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        marks.mark()


def measure_peer(options: argparse.Namespace, checkpointing: str, clips: int) -> Row:
    row = Row(f"transformers {options.precision}", checkpointing, clips)
    device = torch.device(options.device)
    reset_peak(device)
    try:
        peer = Peer(options, checkpointing, clips)
        for _ in range(options.warm_up):
            peer.step(Marks(device))
        marks = Marks(device)
        wait(device)
        start = time.perf_counter()
        for _ in range(options.peer_steps):
            peer.step(marks)
        wait(device)
        row.step_ms = 1e3 * (time.perf_counter() - start) / options.peer_steps
        row.clips_per_second = 1e3 * clips / row.step_ms
        row.parts_ms = marks.mean_ms()
        row.peak_bytes = peak_bytes(device)
    except torch.OutOfMemoryError:
        row.error = "out of memory"
    return row


def octavo_rows(options: argparse.Namespace, name: str, *arguments: str) -> list[dict[str, Any]]:
    """Returns the rows of `octavo bench <name>`."""
    common = ("--size", options.size, "--device", options.device, "--seconds", str(options.seconds))
    rows = run_octavo(options.command, "bench", name, *common, *arguments, show_progress=True)["rows"]
    return list(rows)


def measure_octavo(options: argparse.Namespace) -> list[Row]:
    arguments = [
        *("--clips", ",".join(map(str, options.clips)), "--tokens", str(options.tokens)),
        *("--checkpointing", ",".join(options.checkpointing)),
        *("--optimizer", options.optimizer, "--steps", str(options.steps)),
    ]
    rows = []
    for each in octavo_rows(options, "speech", *arguments):
        row = Row(f"octavo {each['optimizer']}", each["checkpointing"], each["clips"])
        row.error = each.get("error", "")
        if not row.error:
            row.clips_per_second, row.step_ms = each["clips_per_second"], each["step_ms"]
            row.peak_bytes = each["memory"]["peak"]
            row.parts_ms = [0.0] * len(PARTS)
            for name, part in OCTAVO_PARTS.items():
                row.parts_ms[part] += each["parts"][name]
        rows.append(row)
    return rows


def cells(row: Row) -> list[str]:
    first = [row.side, row.checkpointing, str(row.clips)]
    if row.error:
        return [*first, row.error, *[""] * (len(PARTS) + 3)]
    peak = f"{row.peak_bytes / 1e9:.1f}" if row.peak_bytes else "-"
    rest = max(row.step_ms - math.fsum(row.parts_ms), 0.0)
    times = [row.step_ms, *row.parts_ms, rest]
    return [*first, f"{row.clips_per_second:.1f}", peak, *(f"{ms:.1f}" for ms in times)]


def parse_options() -> argparse.Namespace:
    parser = shared_options(__doc__, "32", ["bf16", "autocast", "fp32"])
    add = parser.add_argument
    both = ["off", "on"]
    add("--tokens", type=int, default=70, help="tokens of a clip (default 70)")
    add("--checkpointing", type=some_of(both), default=both, help="off, on or off,on (default both)")
    add("--optimizer", default="adamw_8bit", help="octavo's optimizers, comma-separated (default adamw_8bit)")
    add("--steps", type=int, default=10, help="timed steps of octavo (default 10)")
    add("--peer-steps", type=int, default=3, help="timed steps of transformers (default 3)")
    add("--warm-up", type=int, default=2, help="steps of transformers before the timed ones (default 2)")
    options = parser.parse_args()
    require_positive(parser, options, "tokens", "steps", "peer-steps")
    return options


def shared_options(doc: str | None, clips: str, precisions: list[str]) -> argparse.ArgumentParser:
    """Returns a parser with the options that speech.py and transcribe.py share."""
    parser, sides = option_parser(doc), ["transformers", "octavo"]
    add = parser.add_argument
    add("--clips", type=counts, default=clips, help=f"clips in a batch, comma-separated (default {clips})")
    add("--seconds", type=float, default=20.0, help="length of a clip (default 20)")
    add("--size", default="v3", choices=["v3", "v2", "tiny"])
    add("--precision", default="bf16", choices=precisions, help="precision of transformers' side")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--command", default=str(harness.octavo_command()), help="the octavo command")
    add("--side", type=some_of(sides), default=sides, help="sides to run, comma-separated (default both)")
    add("--json", help="also write everything to this file")
    return parser


def compare(
    options: argparse.Namespace,
    peer_rows: Sequence[Callable[[], Any]],
    our_rows: Callable[[argparse.Namespace], list[Any]],
    failed: Callable[[str], Any],
) -> list[Any]:
    """Returns the rows of the sides of --side; frees transformers' model after each of its rows."""
    rows: list[Any] = []
    if "transformers" in options.side:
        try:
            imported("transformers")
        except PeerMissingError as missing:
            print(f"skipped: transformers: {missing}", file=sys.stderr)
            peer_rows = []
        for number, row in enumerate(peer_rows, start=1):
            rows.append(row())
            print(f"transformers: {number} of {len(peer_rows)} rows are done", file=sys.stderr)
            release(torch.device(options.device))
    if "octavo" in options.side:
        try:
            rows += our_rows(options)
        except ValueError as error:
            rows.append(failed(str(error)))
    return rows


def show(options: argparse.Namespace, about: str, table: str, rows: Sequence[Any]) -> int:
    where = harness.device_name(options.device)
    size = f"size {options.size}, clips of {options.seconds:g} s"
    print(f"{where}, torch {torch.__version__}, {size}{about}\n\n{table}")
    write_json(options.json, {"device": where, "rows": [asdict(row) for row in rows]})
    return 1 if any(row.error and row.error != "out of memory" for row in rows) else 0


def main() -> int:
    options = parse_options()
    runs = itertools.product(options.checkpointing, options.clips)
    peer_rows = [lambda run=run: measure_peer(options, *run) for run in runs]
    rows = compare(options, peer_rows, measure_octavo, lambda reason: Row("octavo", "", 0, error=reason))
    head = ["side", "checkpointing", "clips", "clips/s", "peak GB", "ms", *PARTS, "rest"]
    about = f" with {options.tokens} tokens; milliseconds of a step"
    return show(options, about, markdown(head, map(cells, rows)), rows)


if __name__ == "__main__":
    sys.exit(main())
