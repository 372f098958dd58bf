"""A language for tests: a word is a sound, and a recording is words in a row. Writes recordings, manifests
and a tokenizer, and calls the programs of the build."""

from __future__ import annotations

import json
import os
import subprocess
import wave
from pathlib import Path
from typing import Any

import numpy as np

RATE = 16000
WORD = 5600  # samples
WORDS = {
    "low": 300,
    "mid": 600,
    "high": 1000,
    "peep": 1500,
    "red": 2100,
    "blue": 2800,
    "seven": 3600,
    "eleven": 5000,
}
TRAIN, VAL = 48, 16  # clips
STEPS = {"ctc": 150, "tdt": 250, "rnnt": 400}

CONFIG = """
model:
  name: fastconformer
  head: {head}
  tokenizer: {{dir: {folder}/tokenizer}}
  preprocessor: {{features: 40}}
  encoder: {{feat_in: 40, subsampling_conv_channels: 16, n_layers: 2, d_model: 64, n_heads: 4,
    ff_expansion_factor: 2, conv_kernel_size: 5, dropout: 0.0, dropout_pre_encoder: 0.0, dropout_att: 0.0}}
  decoder: {{pred_hidden: 48, pred_rnn_layers: 1, dropout: 0.0}}
  joint: {{joint_hidden: 48, dropout: {dropout}}}
  spec_augment: {{freq_masks: 0, time_masks: 0}}
data: {{train_manifest: {folder}/train.jsonl, val_manifest: {folder}/val.jsonl, dataloader_num_workers: 0}}
training:
  optimizer: adamw_8bit
  learning_rate: 5.0e-3
  warmup_steps: 10
  compute_dtype: float32
  per_device_train_batch_size: 8
  max_steps: {steps}
  eval_steps: null
  save_steps: {steps}
  device: cpu
output_dir: {folder}/run-{head}
"""


def program(name: str) -> str:
    return str(Path(os.environ["OCTAVO_BUILD"]) / name)


def run(*command: Any, cwd: Path | None = None) -> str:
    """Runs a command to its end and returns its stdout."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONPATH", None)
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, check=False, cwd=cwd, env=env
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def octavo(*arguments: Any, cwd: Path | None = None) -> str:
    return run(program("bin/octavo"), *arguments, cwd=cwd)


def text_of(number: int) -> str:
    random = np.random.default_rng(number)
    return " ".join(random.choice(list(WORDS), size=random.integers(1, 6)))


def samples_of(number: int) -> np.ndarray:
    """Clip `number`, 16-bit. Its words' sounds have harmonics, noise and silence around them."""
    random = np.random.default_rng(1000 + number)
    time = np.arange(WORD) / RATE
    parts = [np.zeros(random.integers(0, 1600))]
    for word in text_of(number).split():
        pitch = WORDS[word] * random.uniform(0.97, 1.03)
        sound = sum(np.sin(2 * np.pi * pitch * k * time) / k**2 for k in (1, 2))
        parts.append(sound * np.minimum(1, np.minimum(time, time[::-1]) * 50))
    parts.append(np.zeros(random.integers(0, 1600)))
    sound = np.concatenate(parts)
    sound = sound * random.uniform(0.1, 0.4) + random.normal(size=len(sound)) * 0.003
    return np.round(sound * 32767).clip(-32768, 32767).astype(np.int16)


def write_wave(path: Path, samples: np.ndarray, rate: int = RATE) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(samples.tobytes())


def clips(folder: Path, count: int = VAL) -> list[str]:
    return [str(folder / f"val/{i:03}.wav") for i in range(count)]


def texts(count: int = VAL) -> list[str]:
    return [text_of(TRAIN + i) for i in range(count)]


def write(folder: Path) -> None:
    """train.jsonl, val.jsonl, their recordings, tokenizer/."""
    for name, first, count in (("train", 0, TRAIN), ("val", TRAIN, VAL)):
        (folder / name).mkdir()
        lines = []
        for i in range(count):
            samples = samples_of(first + i)
            path = folder / name / f"{i:03}.wav"
            write_wave(path, samples)
            entry = {"audio_filepath": str(path), "duration": len(samples) / RATE, "text": text_of(first + i)}
            lines.append(json.dumps(entry) + "\n")
        (folder / f"{name}.jsonl").write_text("".join(lines))
    octavo("data", "make-tokenizer", folder / "tokenizer", folder / "train.jsonl", "--vocab-size", "40")


def transcribe(model: Any, recordings: list[str], **options: Any) -> list[dict[str, Any]]:
    """What `octavo transcribe` writes as JSON, for each recording."""
    extra = [word for key, value in options.items() for word in (f"--{key}", value)]
    out = octavo("transcribe", model, *recordings, "--format", "json", "--device", "cpu", *extra)
    return [json.loads(line) for line in out.splitlines()]


def trained(folder: Path, head: str) -> Path:
    """A run of `octavo train`, which is made once in a folder: it has learned some of the words."""
    run = folder / f"run-{head}"
    if run.exists():
        return run
    config = folder / f"run-{head}.yaml"
    # Without dropout NeMo's joint network has one module less, and its tensors have other names.
    dropout = 0.0 if head == "rnnt" else 0.1
    config.write_text(CONFIG.format(head=head, folder=folder, steps=STEPS[head], dropout=dropout))
    octavo("train", config)
    return run
