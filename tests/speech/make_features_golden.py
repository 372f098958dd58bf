"""Writes the expected features of speech_test: a padded batch of two clips, its features by transformers'
ParakeetFeatureExtractor (fp32), and the same features by the formula in float64.

python tests/speech/make_features_golden.py --out tests/speech/features.safetensors

The file in the tree was written with transformers 5.22.0 and torch 2.13.0 on a CPU. transformers takes its
filters from librosa; if librosa is not installed, its own function gives the same numbers.
"""

from __future__ import annotations

import argparse
import importlib
import types
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers.audio_utils import mel_filter_bank

reference = importlib.import_module("transformers.models.parakeet.feature_extraction_parakeet")

RATE, BANDS, SIZE, WINDOW, HOP = 16000, 128, 512, 400, 160
LENGTHS = (11000, 6553)


def filters(bands: int) -> np.ndarray:
    return mel_filter_bank(SIZE // 2 + 1, bands, 0.0, RATE / 2, RATE, norm="slaney", mel_scale="slaney").T


def clip(samples: int, seed: int) -> np.ndarray:
    """Returns a synthetic voice in 16 bits: gliding harmonics with pauses and a little noise; silent at
    first."""
    noise = np.random.default_rng(seed)
    time = np.arange(samples) / RATE
    phase = 2 * np.pi * np.cumsum(110 + 40 * np.sin(2 * np.pi * 3 * time + seed)) / RATE
    voice = sum(np.sin(k * phase + k) / k for k in range(1, 30))
    loudness = np.clip(np.sin(2 * np.pi * 4 * time), 0, 1) * (time > 0.03)
    x = 0.2 * loudness * voice + 1e-3 * noise.standard_normal(samples) * (time > 0.02)
    return np.round(np.clip(x, -1, 1) * 32767).astype(np.int16)


def exact(x: np.ndarray) -> np.ndarray:
    """Returns the result of the formula of train/nn/mel.h for one clip."""
    frames = len(x) // HOP
    x = np.concatenate([x[:1], x[1:] - 0.97 * x[:-1]])
    x = np.pad(x, SIZE // 2)
    window = np.pad(np.hanning(WINDOW), (SIZE - WINDOW) // 2)
    power = np.stack([np.abs(np.fft.rfft(x[t * HOP : t * HOP + SIZE] * window)) ** 2 for t in range(frames)])
    y = np.log(power @ filters(BANDS).T + 2.0**-24)
    return (y - y.mean(0)) / (y.std(0, ddof=1) + 1e-5)


def extractor() -> Any:
    def mel(sr: int, n_fft: int, n_mels: int, **_: Any) -> np.ndarray:
        assert (sr, n_fft) == (RATE, SIZE)
        return filters(n_mels).astype(np.float32)

    if not hasattr(reference, "librosa"):
        reference.librosa = types.SimpleNamespace(filters=types.SimpleNamespace(mel=mel))
    return reference.ParakeetFeatureExtractor(feature_size=BANDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--out", required=True)
    out = parser.parse_args().out
    clips = [clip(length, i) for i, length in enumerate(LENGTHS)]
    audio = [each.astype(np.float32) / 32768 for each in clips]
    found = extractor()(audio, sampling_rate=RATE, return_tensors="pt")
    # The reference has one more frame, which is zero.
    longest = max(LENGTHS) // HOP
    features = found.input_features[:, :longest].contiguous()
    wanted = torch.zeros(features.shape, dtype=torch.float64)
    for i, each in enumerate(audio):
        wanted[i, : len(each) // HOP] = torch.from_numpy(exact(each.astype(np.float64)))
    print("reference against float64:", (features - wanted).abs().max().item())
    padded = torch.zeros(len(clips), max(LENGTHS), dtype=torch.int16)
    for i, each in enumerate(clips):
        padded[i, : len(each)] = torch.from_numpy(each)
    some = torch.from_numpy(filters(80)).to(torch.float32)
    for band, bin_ in ((0, 1), (0, 2), (40, 55), (79, 250)):
        print(f"filters of 80 bands [{band}, {bin_}]: {some[band, bin_].item():.9g}")
    print(f"their sum: {some.double().sum().item():.12g}")
    save_file(
        {
            "audio": padded,
            "lengths": torch.tensor(LENGTHS),
            "features": features,
            "exact": wanted.to(torch.float32),
        },
        out,
    )


if __name__ == "__main__":
    main()
