"""Times how fast Parakeet TDT 0.6B transcribes: transformers' ParakeetForTDT, then `octavo bench transcribe`.

Both sides have random weights. The bias of blank is set so that about as many tokens per second are emitted
as for speech; the table has their number. transformers' side begins with features on the device and ends with
tokens, which is in its favour: octavo's side begins with samples or files and ends with text. Every label of
transformers' side advances by at least a frame, because transformers does not limit the labels of a frame.
Times are wall clock times. Octavo's command starts after the other model has been freed.

python benchmarks/transcribe.py --clips 60 --from memory,flac
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

import torch
from report import markdown, require_positive
from speech import PeerModel, compare, octavo_rows, shared_options, show, vocabulary
from stopwatch import wait

BIAS = 32.0  # the bias of blank: blank is never emitted at -BIAS, and always at BIAS


@dataclass
class Row:
    side: str
    clips: int  # clips in a batch
    times_real_time: float = 0.0
    tokens_per_second: float = 0.0
    error: str = ""


class Peer(PeerModel):
    """Batches of transformers' model."""

    def __init__(self, options: argparse.Namespace, clips: int) -> None:
        torch.manual_seed(0)
        super().__init__(options, "off", clips)
        self.seconds = options.seconds
        self.model.eval()
        self.blank = vocabulary(options)
        self.model.generation_config.decoder_start_token_id = self.blank
        head = self.model.joint.head
        with torch.no_grad():
            head.weight.mul_(10)  # so that the frames differ
            head.bias[self.blank + 1] = -1e4  # the duration 0

    def transcribe(self, clips: int | None = None) -> float:
        """Returns the emitted tokens per second of audio."""
        with torch.inference_mode():
            found = self.model.generate(self.features[:clips], attention_mask=self.mask[:clips])
        tokens = found.sequences[:, 1:]  # the first token is the start
        labels = int(((tokens != self.blank) & (tokens != self.model.config.pad_token_id)).sum())
        return labels / (len(tokens) * self.seconds)

    def set_rate(self, wanted: float) -> None:
        low, high = -BIAS, BIAS
        for _ in range(10):
            middle = (low + high) / 2
            with torch.no_grad():
                self.model.joint.head.bias[self.blank] = middle
            low, high = (middle, high) if self.transcribe(4) > wanted else (low, middle)


def measure_peer(options: argparse.Namespace, clips: int) -> Row:
    row = Row(f"transformers {options.precision}, from features", clips)
    try:
        peer = Peer(options, clips)
        peer.set_rate(options.tokens_per_second)
        peer.transcribe()
        wait(peer.device)
        start = time.perf_counter()
        for _ in range(options.batches):
            row.tokens_per_second = peer.transcribe()
        wait(peer.device)
        seconds = (time.perf_counter() - start) / options.batches
        row.times_real_time = clips * options.seconds / seconds
    except torch.OutOfMemoryError:
        row.error = "out of memory"
    return row


def measure_octavo(options: argparse.Namespace) -> list[Row]:
    batches = ",".join(f"{clips * options.seconds:g}" for clips in options.clips)
    arguments = [
        *("--from", options.sources, "--batch-seconds", batches),
        *("--clips", str(options.batches * max(options.clips))),
        *("--tokens-per-second", str(options.tokens_per_second)),
    ]
    return [
        Row(
            f"octavo, from {each['from']}",
            round(each["batch_seconds"] / options.seconds),
            each["times_real_time"],
            each["tokens_per_second"],
        )
        for each in octavo_rows(options, "transcribe", *arguments)
    ]


def main() -> int:
    parser = shared_options(__doc__, "60", ["bf16", "fp32"])
    add = parser.add_argument
    add("--batches", type=int, default=5, help="timed batches (default 5)")
    add("--tokens-per-second", type=float, default=3.5, help="approximate tokens of the models (default 3.5)")
    add("--from", dest="sources", default="memory", help="sources of octavo's side: memory, wav, flac, mp3")
    options = parser.parse_args()
    require_positive(parser, options, "batches")
    peer_rows = [lambda clips=clips: measure_peer(options, clips) for clips in options.clips]
    rows = compare(options, peer_rows, measure_octavo, lambda reason: Row("octavo", 0, error=reason))
    cells = [
        [row.side, row.clips, row.error or f"{row.times_real_time:,.0f}", f"{row.tokens_per_second:.1f}"]
        for row in rows
    ]
    table = markdown(["side", "clips in a batch", "times real time", "tokens/s"], cells)
    return show(options, "", table, rows)


if __name__ == "__main__":
    sys.exit(main())
