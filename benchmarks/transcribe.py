"""How fast Parakeet TDT 0.6B hears: transformers' ParakeetForTDT, and then `octavo bench transcribe`.

Random weights on both sides. The bias of blank is set so that about as many tokens a second come out as of
speech; the table says how many. transformers' side begins with features on the device and ends with tokens,
which is in its favour: octavo's begins with samples, or with files, and ends with text. Labels of
transformers' side advance by at least a frame, for it has no limit of labels at one. Times are by the wall
clock. Octavo's command runs when the other model is gone.

python benchmarks/transcribe.py --clips 60 --from memory,flac
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import harness
import torch
from speech import BANDS, build_peer, vocabulary
from stopwatch import wait

BIAS = 32.0  # of blank: at -BIAS it is never taken, at BIAS always


@dataclass
class Row:
    side: str
    clips: int  # of a batch
    times_real_time: float = 0.0
    tokens_per_second: float = 0.0
    error: str = ""


class Peer:
    """Batches of transformers' model."""

    def __init__(self, options: argparse.Namespace, clips: int) -> None:
        self.seconds = options.seconds
        self.device = torch.device(options.device)
        torch.manual_seed(0)
        self.model: Any = build_peer(options, "off", self.device).eval()
        self.blank = vocabulary(options)
        self.model.generation_config.decoder_start_token_id = self.blank
        frames = round(100 * options.seconds)
        dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
        self.features = torch.randn(clips, frames, BANDS, device=self.device, dtype=dtype)
        self.mask = torch.ones(clips, frames, device=self.device, dtype=torch.bool)
        head = self.model.joint.head
        with torch.no_grad():
            head.weight.mul_(10)  # so that frames differ
            head.bias[self.blank + 1] = -1e4  # the duration 0

    def hear(self, clips: int | None = None) -> float:
        """Tokens a second."""
        with torch.inference_mode():
            found = self.model.generate(self.features[:clips], attention_mask=self.mask[:clips])
        tokens = found.sequences[:, 1:]  # the first is the start
        labels = int(((tokens != self.blank) & (tokens != self.model.config.pad_token_id)).sum())
        return labels / (len(tokens) * self.seconds)

    def set_rate(self, wanted: float) -> None:
        low, high = -BIAS, BIAS
        for _ in range(10):
            middle = (low + high) / 2
            with torch.no_grad():
                self.model.joint.head.bias[self.blank] = middle
            if self.hear(4) > wanted:
                low = middle
            else:
                high = middle


def measure_peer(options: argparse.Namespace, clips: int) -> Row:
    row = Row(f"transformers {options.precision}, from features", clips)
    try:
        peer = Peer(options, clips)
        peer.set_rate(options.tokens_per_second)
        peer.hear()
        wait(peer.device)
        start = time.perf_counter()
        for _ in range(options.batches):
            row.tokens_per_second = peer.hear()
        wait(peer.device)
        took = (time.perf_counter() - start) / options.batches
        row.times_real_time = clips * options.seconds / took
    except torch.OutOfMemoryError:
        row.error = "out of memory"
    return row


def measure_octavo(options: argparse.Namespace) -> list[Row]:
    batches = [clips * options.seconds for clips in options.clips]
    total = options.batches * max(options.clips)
    arguments = [
        *("bench", "transcribe", "--json", "--size", options.size, "--device", options.device),
        *("--from", options.sources, "--batch-seconds", ",".join(f"{each:g}" for each in batches)),
        *("--clips", str(total), "--seconds", str(options.seconds)),
        *("--tokens-per-second", str(options.tokens_per_second)),
    ]
    done = subprocess.run([options.command, *arguments], stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        return [Row("octavo", 0, error=f"{options.command} failed")]
    return [
        Row(
            f"octavo, from {each['from']}",
            round(each["batch_seconds"] / options.seconds),
            each["times_real_time"],
            each["tokens_per_second"],
        )
        for each in json.loads(done.stdout)["rows"]
    ]


def markdown(rows: Sequence[Row]) -> str:
    lines = ["| side | clips in a batch | times real time | tokens/s |", "|---|---|---|---|"]
    for row in rows:
        number = row.error or f"{row.times_real_time:,.0f}"
        lines.append(f"| {row.side} | {row.clips} | {number} | {row.tokens_per_second:.1f} |")
    return "\n".join(lines)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--clips", default="60", help="in a batch, comma-separated (default 60)")
    add("--seconds", type=float, default=20.0, help="of a clip (default 20)")
    add("--batches", type=int, default=5, help="timed (default 5)")
    add("--tokens-per-second", type=float, default=3.5, help="that the models give, about (default 3.5)")
    add("--from", dest="sources", default="memory", help="of octavo's side: memory, wav, flac, mp3")
    add("--size", default="v3", choices=["v3", "v2", "tiny"])
    add("--precision", default="bf16", choices=["bf16", "fp32"], help="of transformers' side")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--command", default=str(harness.octavo_command()), help="the octavo command")
    add("--side", default="transformers,octavo", help="which to run, comma-separated (default both)")
    add("--json", help="write everything there as well")
    options = parser.parse_args()
    options.clips = [int(each) for each in options.clips.split(",")]
    options.side = options.side.split(",")
    if options.batches < 1 or min(options.clips) < 1:
        parser.error("--batches and --clips: expected at least 1")
    return options


def main() -> int:
    options = parse_options()
    rows: list[Row] = []
    if "transformers" in options.side:
        if importlib.util.find_spec("transformers") is None:
            print("transformers is not installed: its rows are left out", file=sys.stderr)
        else:
            for clips in options.clips:
                rows.append(measure_peer(options, clips))
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
    print(f"{where}, torch {torch.__version__}, size {options.size}, clips of {options.seconds:g} s\n")
    print(markdown(rows))
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"device": where, "rows": [asdict(row) for row in rows]}, file, indent=2)
    return 1 if any(row.error and row.error != "out of memory" for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
