"""A training step of Parakeet TDT 0.6B by transformers' ParakeetForTDT, and then by `octavo bench speech`.

Random weights, features and labels; clips of one length. transformers' side is its model with its own loss
(sigma 0.02), SDPA attention and torch's fused AdamW; its logits are dropped before the backward pass, which
is in its favour. Times are by CUDA events, on a CPU by the wall clock; the peak is that of torch's allocator.
Octavo's command runs when the other model is gone.

python benchmarks/speech.py --clips 32 --checkpointing off,on
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import itertools
import json
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import harness
import torch
from stopwatch import wait

SIGMA = 0.02
BANDS = 128
PARTS = (
    "encoder forward",
    "head and loss forward",
    "head and loss backward",
    "encoder backward",
    "optimizer",
)
CHECKPOINTING = ("off", "on")
# Of octavo's parts, which are finer.
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
    peak_bytes: int = 0  # 0: unknown, on a CPU
    parts_ms: list[float] = field(default_factory=list)  # PARTS
    error: str = ""


class Marks:
    """Points of a step on the GPU's own clock; nothing waits for them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: list[list[Any]] = []

    def begin(self) -> None:
        self._steps.append([])
        self.mark()

    def mark(self) -> None:
        if self._device.type != "cuda":
            self._steps[-1].append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._steps[-1].append(event)

    def mean_ms(self) -> list[float]:
        wait(self._device)

        def between(first: Any, second: Any) -> float:
            if self._device.type == "cuda":
                return float(first.elapsed_time(second))
            return 1e3 * float(second - first)

        each = [[between(a, b) for a, b in itertools.pairwise(step)] for step in self._steps]
        return [sum(values) / len(values) for values in zip(*each, strict=True)]


def build_peer(options: argparse.Namespace, checkpointing: str, device: torch.device) -> torch.nn.Module:
    from transformers import ParakeetEncoderConfig, ParakeetForTDT, ParakeetTDTConfig

    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    encoder = ParakeetEncoderConfig(
        num_mel_bins=BANDS,
        attention_bias=False,
        convolution_bias=False,
        scale_input=False,
        layerdrop=0.0,
        **(small | {"subsampling_conv_channels": 8} if options.size == "tiny" else {}),
    )
    tokens = vocabulary(options)
    config = ParakeetTDTConfig(
        encoder_config=encoder,
        vocab_size=tokens + 1,
        blank_token_id=tokens,
        pad_token_id=2,
        **({"decoder_hidden_size": 64} if options.size == "tiny" else {}),
    )
    with device:
        model = ParakeetForTDT(config)
    if options.precision == "bf16":
        model = model.to(torch.bfloat16)
    if checkpointing == "on":
        model.gradient_checkpointing_enable()
    return model.train()


def vocabulary(options: argparse.Namespace) -> int:
    return {"v3": 8192, "v2": 1024, "tiny": 64}[options.size]


class Peer:
    """Steps of transformers' model."""

    def __init__(self, options: argparse.Namespace, checkpointing: str, clips: int) -> None:
        self.options = options
        self.device = torch.device(options.device)
        self.model: Any = build_peer(options, checkpointing, self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        frames, tokens = round(100 * options.seconds), vocabulary(options)
        dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
        self.features = torch.randn(clips, frames, BANDS, device=self.device, dtype=dtype)
        self.mask = torch.ones(clips, frames, device=self.device, dtype=torch.bool)
        # Label 2 is the padding.
        self.labels = torch.randint(3, tokens, (clips, options.tokens), device=self.device)
        start = torch.full((clips, 1), tokens, device=self.device)
        self.inputs = torch.cat([start, self.labels], dim=1)

    def loss(self, marks: Marks) -> torch.Tensor:
        model, config = self.model, self.model.config
        encoded = model.get_audio_features(input_features=self.features, attention_mask=self.mask)
        encoded.pooler_output.register_hook(lambda grad: marks.mark())  # where the encoder's backward begins
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
        mixed = self.options.precision == "autocast"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=mixed):
            loss = self.loss(marks)
        loss.backward()
        marks.mark()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        marks.mark()


def measure_peer(options: argparse.Namespace, checkpointing: str, clips: int) -> Row:
    row = Row(f"transformers {options.precision}", checkpointing, clips)
    device = torch.device(options.device)
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
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
        if cuda:
            row.peak_bytes = torch.cuda.max_memory_allocated(device)
    except torch.OutOfMemoryError:
        row.error = "out of memory"
    return row


def measure_octavo(options: argparse.Namespace) -> list[Row]:
    arguments = [
        *("bench", "speech", "--json", "--size", options.size, "--device", options.device),
        *("--clips", ",".join(map(str, options.clips)), "--seconds", str(options.seconds)),
        *("--tokens", str(options.tokens), "--checkpointing", ",".join(options.checkpointing)),
        *("--optimizer", options.optimizer, "--steps", str(options.steps)),
    ]
    done = subprocess.run([options.command, *arguments], stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        return [Row("octavo", "", 0, error=f"{options.command} failed")]
    rows = []
    for each in json.loads(done.stdout)["rows"]:
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


def markdown(rows: Sequence[Row]) -> str:
    header = ["side", "checkpointing", "clips", "clips/s", "peak GB", "ms", *PARTS, "rest"]
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    for row in rows:
        cells = [row.side, row.checkpointing, str(row.clips)]
        if row.error:
            cells += [row.error] + [""] * (len(header) - len(cells) - 1)
        else:
            peak = f"{row.peak_bytes / 1e9:.1f}" if row.peak_bytes else "-"
            rest = max(row.step_ms - math.fsum(row.parts_ms), 0.0)
            cells += [f"{row.clips_per_second:.1f}", peak, f"{row.step_ms:.1f}"]
            cells += [f"{part:.1f}" for part in [*row.parts_ms, rest]]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--clips", default="32", help="in a step, comma-separated (default 32)")
    add("--seconds", type=float, default=20.0, help="of a clip (default 20)")
    add("--tokens", type=int, default=70, help="of a clip (default 70)")
    add("--checkpointing", default="off,on", help="off, on or both, comma-separated (default both)")
    add("--size", default="v3", choices=["v3", "v2", "tiny"])
    add("--precision", default="bf16", choices=["bf16", "autocast", "fp32"], help="of transformers' side")
    add("--optimizer", default="adamw_8bit", help="of octavo's side, comma-separated (default adamw_8bit)")
    add("--steps", type=int, default=10, help="timed steps of octavo (default 10)")
    add("--peer-steps", type=int, default=3, help="timed steps of transformers (default 3)")
    add("--warm-up", type=int, default=2, help="steps of transformers before them (default 2)")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--command", default=str(harness.octavo_command()), help="the octavo command")
    add("--side", default="transformers,octavo", help="which to run, comma-separated (default both)")
    add("--json", help="write everything there as well")
    options = parser.parse_args()
    options.clips = [int(each) for each in options.clips.split(",")]
    options.checkpointing = options.checkpointing.split(",")
    for each in options.checkpointing:
        if each not in CHECKPOINTING:
            parser.error(f"--checkpointing: got {each!r}, expected off, on or off,on")
    for name in ("tokens", "steps", "peer_steps"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: got {getattr(options, name)}, expected at least 1")
    options.side = options.side.split(",")
    return options


def main() -> int:
    options = parse_options()
    rows: list[Row] = []
    if "transformers" in options.side:
        if importlib.util.find_spec("transformers") is None:
            print("transformers is not installed: its rows are left out", file=sys.stderr)
        else:
            for checkpointing in options.checkpointing:
                for clips in options.clips:
                    rows.append(measure_peer(options, checkpointing, clips))
                    print(
                        f"transformers, checkpointing {checkpointing}, {clips} clips: done", file=sys.stderr
                    )
                    gc.collect()
                    if options.device.startswith("cuda"):
                        torch.cuda.empty_cache()
    if "octavo" in options.side:
        rows += measure_octavo(options)
    where = (
        torch.cuda.get_device_name(options.device)
        if options.device.startswith("cuda")
        else harness.cpu_name()
    )
    print(f"{where}, torch {torch.__version__}, size {options.size}, clips of {options.seconds:g} s", end="")
    print(f" with {options.tokens} tokens; milliseconds of a step\n\n{markdown(rows)}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": where, "rows": [asdict(row) for row in rows]}, file, indent=2)
    return 1 if any(row.error and row.error != "out of memory" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
