"""Measures the word error rate of the model of `make speech-demo`: one sentence, two sentences, a minute.

The sentences are held out: another seed of `octavo data make-speech`, without the sentences of the training
clips. espeak-ng reads each kind in eight voices and speeds. The script prints the word error rate of each
kind, and the distance of the times of a sentence's first and last word from its first and last sound.

make speech-demo
python3 benchmarks/speech_demo.py --run build/speech-demo/run --speech build/speech-demo/speech
"""

from __future__ import annotations

import difflib
import itertools
import json
import statistics
import struct
import subprocess
import tempfile
import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from report import ROOT, markdown_head, markdown_row, option_parser

READERS = [
    ("en-us", 150), ("en-us", 165), ("en-us", 175), ("en-us", 190),
    ("en-gb", 160), ("en-gb", 175), ("en-us+f2", 175), ("en-gb-scotland", 170),
]  # fmt: skip
RATE = 22050  # sample rate of espeak-ng
QUIET = 300  # of 32768; sounds are louder


@dataclass
class Recording:
    kind: str
    words: list[str] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    sentences: list[tuple[int, int, float, float]] = field(
        default_factory=list
    )  # first word, last word, begin and end in seconds

    def add(self, text: str, spoken: Sequence[int], pause: float) -> None:
        """Appends a sentence and a pause."""
        loud = [i for i, sample in enumerate(spoken) if abs(sample) > QUIET]
        begin, first = len(self.samples), len(self.words)
        self.words += text.split()
        times = ((begin + loud[0]) / RATE, (begin + loud[-1]) / RATE)
        self.sentences.append((first, len(self.words) - 1, *times))
        self.samples += [*spoken, *([0] * int(pause * RATE))]

    def write(self, path: Path) -> None:
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(struct.pack(f"<{len(self.samples)}h", *self.samples))


def speak(text: str, voice: str, speed: int, *options: str) -> tuple[int, ...]:
    command = ["espeak-ng", "-v", voice, "-s", str(speed), *options, "--stdin", "--stdout"]
    wav = subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout[44:]
    return struct.unpack(f"<{len(wav) // 2}h", wav[: len(wav) // 2 * 2])


def held_out(command: str, speech: Path, folder: Path) -> Iterator[str]:
    known = " | ".join(json.loads(line)["text"] for line in (speech / "train.jsonl").open())
    options = ["--clips", "1", "--val-clips", "400", "--seed", "2", "--silence", "0", "--joined", "0"]
    subprocess.run([command, "data", "make-speech", str(folder), *options], check=True, capture_output=True)
    texts = [json.loads(line)["text"] for line in (folder / "val.jsonl").open()]
    return itertools.cycle([text for text in texts if text not in known])


def recordings(sentences: Iterator[str]) -> Iterator[Recording]:
    for voice, speed in READERS:
        for _ in range(5):  # these recordings keep the silence that espeak-ng writes at the end
            one = Recording("one sentence, as espeak-ng writes it")
            text = next(sentences)
            one.add(text, speak(text, voice, speed), 0)
            yield one
        kinds = {"two sentences": 2, "two sentences ": 2, "a minute": 25}
        for kind, count in kinds.items():
            joined = Recording(kind.strip())
            for text in itertools.islice(sentences, count):
                joined.add(text, speak(text, voice, speed, "-z"), 0.3)
            yield joined


def errors(spoken: Sequence[str], transcribed: Sequence[str]) -> int:
    row = list(range(len(transcribed) + 1))
    for i, word in enumerate(spoken, 1):
        last, row[0] = row[0], i
        for j, other in enumerate(transcribed, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1]


def misses(recording: Recording, transcribed: Sequence[dict]) -> Iterator[float]:
    """Yields the seconds between a sentence's ends and the times of its first and last word, if correct."""
    matcher = difflib.SequenceMatcher(
        None, recording.words, [each["word"] for each in transcribed], autojunk=False
    )
    found = {a + i: transcribed[b + i] for a, b, size in matcher.get_matching_blocks() for i in range(size)}
    for first, last, begin, end in recording.sentences:
        if first in found:
            yield abs(found[first]["start"] - begin)
        if last in found:
            yield abs(found[last]["end"] - end)


def main() -> None:
    parser = option_parser(__doc__)
    parser.add_argument("--command", default=str(ROOT / "build/bin/octavo"))
    parser.add_argument("--run", required=True, help="the folder of the demo's run")
    parser.add_argument("--speech", type=Path, required=True, help="the folder of octavo data make-speech")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        made = {}
        for i, each in enumerate(recordings(held_out(options.command, options.speech, folder / "texts"))):
            path = folder / f"{i}.wav"
            each.write(path)
            made[str(path)] = each
        flags = ["--checkpoint", "best", "--device", "cpu", "--format", "json"]
        done = subprocess.run(
            [options.command, "transcribe", options.run, *flags, *made],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    transcribed = {
        line["audio_filepath"]: line["words"] for line in map(json.loads, done.stdout.splitlines())
    }
    print(markdown_head(["recordings", "files", "words", "WER", "times within 0.2 s", "median"]))
    for kind in dict.fromkeys(each.kind for each in made.values()):
        group = [(each, transcribed[path]) for path, each in made.items() if each.kind == kind]
        words = sum(len(each.words) for each, _ in group)
        wrong = sum(errors(each.words, [word["word"] for word in found]) for each, found in group)
        off = [miss for each, found in group for miss in misses(each, found)]
        near = sum(miss <= 0.2 for miss in off) / max(len(off), 1)
        median = f"{statistics.median(off):.2f} s" if off else "-"
        print(markdown_row([kind, len(group), words, f"{wrong / words:.1%}", f"{near:.0%}", median]))


if __name__ == "__main__":
    main()
