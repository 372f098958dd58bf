"""Makes recordings to time a training with: clips of noise of one length, with made-up words as their texts.

A manifest contains each clip many times, so that few files suffice for long runs.

python benchmarks/noise_clips.py clips --seconds 20
"""

from __future__ import annotations

import json
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from report import option_parser

RATE = 16000
LETTERS = list("abcdefghijklmnopqrstuvwxyz")


def write_clip(path: Path, samples: np.ndarray) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.astype("<i2").tobytes())


def main(arguments: Sequence[str] | None = None) -> None:
    parser = option_parser(__doc__)
    parser.add_argument("folder", type=Path, help="new folder for the clips, train.jsonl and val.jsonl")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--words", type=int, default=40, help="words of a clip")
    parser.add_argument("--lines", type=int, default=4000, help="lines of train.jsonl; val.jsonl has 16")
    options = parser.parse_args(arguments)
    options.folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    words = ["".join(random.choice(LETTERS, 5)) for _ in range(400)]
    for number in range(options.files):
        write_clip(
            options.folder / f"{number}.wav", 3000 * random.standard_normal(int(options.seconds * RATE))
        )
    for name, lines in (("train", options.lines), ("val", 16)):
        with (options.folder / f"{name}.jsonl").open("w") as file:
            for line in range(lines):
                entry = {
                    "audio_filepath": f"{line % options.files}.wav",
                    "duration": options.seconds,
                    "text": " ".join(random.choice(words, options.words)),
                }
                file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    main()
