"""Commands of the pages, run line by line in a scratch folder that looks like a checkout.

The folder has links to the sources and to the build, and `octavo` is on the PATH. Commands run as they stand,
with two exceptions: training is a few steps of a small model, and benchmarks compute results without timing.
What a test cannot do at all is in ELSEWHERE, with the reason.
"""

from __future__ import annotations

import math
import os
import re
import struct
import subprocess
import wave
from pathlib import Path

import pages
import torch

# Commands that are not run here, and why.
ELSEWHERE = {
    r"make( |$)": "the targets of the Makefile are what CI runs",
    r"git clone ": "needs an address",
    r"git diff": "shows the reader's own change",
    r"cd octavo$": "follows the clone",
    r"(\S*/)?pip install": "tests/python/test_wheel.py builds and installs the wheel",
    r"cmake --preset": "builds the library; CI does",
    r"cmake --install": "tests/install",
    r"ctest ": "runs the tests themselves",
    r"tensorboard ": "not in the test environment",
    r"(\S*/)?octavo evaluate ": "needs recordings; tests/apps/test_evaluate.py makes some",
    r"octavo export \S+ \S+\.nemo": "needs an archive of NeMo; tests/apps/test_export.py makes one",
    r"octavo train \S*parakeet(?!.*--print-config)": "needs the downloaded model",
    r"octavo transcribe ": "needs a speech model; tests/apps/test_transcribe.py makes one",
    r"espeak-ng ": "a program of the demo, which `make speech-demo` installs",
    r"octavo data make-tokenizer ": "needs texts; tests/apps/test_tokenizer.py writes some",
    r"(\S*/)?python tests/peers/": "needs NeMo; `make peers` installs it",
    r"python examples/python/": "tests/docs/test_examples.py runs them in its own process",
}
# Commands that run where torch finds a GPU and the build has the CUDA backend.
NEEDS_A_GPU = re.compile(r".*(build-cuda|--device cuda)")
# Appended to a training command: a few steps of a small model on the CPU, by the task.
SHORT_RUN = (
    "max_steps=2 eval_steps=2 max_eval_samples=2 per_device_train_batch_size=1 per_device_eval_batch_size=1 "
    "device=cpu"
)
SMALL_TEXT = "n_layer=1 n_embd=32 n_head=2 block_size=64"
SMALL_SPEECH = "encoder.n_layers=1 encoder.d_model=16 generator.seconds=1 generator.tokens=2"
# The configs whose task is speech; the pages of others train text.
_SPEECH = re.compile(r"(speech_generated|large)\.yaml")
SECONDS = 120
# Processes on gloo print this now and then after their work is done, and abort. Those of torch 2.13's
# own optimizers did it in one start of eight. Only a torchrun that printed it is run again.
TORCH_ENDED_BADLY = "terminate called without an active exception"
TRIES = 5

_TRAIN = re.compile(r"^(torchrun .* )?(\S*/)?octavo train \S+\.yaml")
_BENCH = re.compile(r"^(\S+=\S+ )*(\S*/)?octavo bench (?!offload)")  # that one is short on a CPU


def scratch(folder: Path, build: Path) -> None:
    """Links to what a command of a checkout reads."""
    for name in ("include", "examples", "scripts", "benchmarks", "docs", "tests", "adapters", ".venv"):
        (folder / name).symlink_to(pages.ROOT / name)
    for name in ("build", "build-cuda"):
        (folder / name).symlink_to(build)
    (folder / "corpus.txt").write_text("a text of the reader's own\n" * 2000)
    _recordings(folder / "recordings")


def _recordings(folder: Path) -> None:
    """Tones as WAV files, each with its text beside it."""
    folder.mkdir()
    for i, text in enumerate(["one boat", "two boats", "a blue boat", "three blue boats"]):
        tone = [int(8000 * math.sin(n * (0.05 + 0.01 * i))) for n in range(16000)]
        with wave.open(str(folder / f"{i}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes(struct.pack(f"<{len(tone)}h", *tone))
        (folder / f"{i}.txt").write_text(text + "\n")


def reason_elsewhere(command: str) -> str:
    """Why a command is not run here, or an empty text."""
    if NEEDS_A_GPU.match(command) and not torch.cuda.is_available():
        return "needs a GPU"
    return next((why for pattern, why in ELSEWHERE.items() if re.match(pattern, command)), "")


def commands(snippet: pages.Snippet) -> list[tuple[str, list[str] | None]]:
    """The commands of a snippet, each with the output that the page shows (None: it shows none)."""
    found: list[tuple[str, list[str] | None]] = []
    if snippet.language == "bash":
        joined = snippet.text.replace("\\\n", " ")
        return [(line, None) for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    shown: list[str] = []
    for line in snippet.text.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            shown = []
            found.append((line[2:], shown))
        else:
            shown.append(line)
    return [(command, lines or None) for command, lines in found]


def shortened(command: str) -> str:
    """The command as it is run: a comment at its end, and what makes it short."""
    command = re.sub(r"\s+# .*$", "", command)
    if _TRAIN.match(command) and "--print-config" not in command:
        return f"{command} {SHORT_RUN} {SMALL_SPEECH if _SPEECH.search(command) else SMALL_TEXT}"
    if _BENCH.match(command) and "--dry-run" not in command:
        return f"{command} --dry-run"
    return command


def run(command: str, folder: Path, build: Path) -> str:
    """What the command prints. AssertionError where it fails."""
    env = {
        **os.environ,
        "PATH": f"{build / 'bin'}:{pages.ROOT / '.venv/bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(pages.ROOT / "adapters/python"),
        "OCTAVO_LIBRARY": os.environ.get("OCTAVO_LIBRARY", str(build / "lib/liboctavo.so")),
        "OMP_NUM_THREADS": "1",
    }
    for _ in range(TRIES if command.startswith("torchrun ") else 1):
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=env,
            encoding="utf-8",
            errors="replace",  # a model that was trained for two steps writes any byte
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )
        if done.returncode == 0 or TORCH_ENDED_BADLY not in done.stdout:
            break
    assert done.returncode == 0, f"$ {command}\n{done.stdout}\nexit code {done.returncode}"
    return done.stdout


def matches(shown: list[str], printed: str) -> bool:
    """Whether what was printed is what the page shows, where … stands for any text."""
    pattern = ".*".join(re.escape(part) for part in "\n".join(shown).strip().split("…"))
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None
