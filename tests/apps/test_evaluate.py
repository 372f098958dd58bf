"""Tests `octavo evaluate`: the word errors of a tiny model on a manifest with clips that cannot be read.

Sums, tables and marks are tested in tests/audio/score_test.cc.
"""

import json
import math
import os
import pathlib
import signal
import struct
import subprocess
import wave

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build" / "bin" / "octavo")
TRAINER = pathlib.Path(BINARY).with_name("octavo-trainer")
pytestmark = pytest.mark.skipif(not TRAINER.exists(), reason="this build has no octavo-trainer (LibTorch)")

RUN = """\
model:
  name: fastconformer
  vocab_size: {tokens}
  encoder: {{feat_in: 16, subsampling_conv_channels: 4, n_layers: 1, d_model: 16, n_heads: 2}}
  decoder: {{pred_hidden: 16, pred_rnn_layers: 1}}
  joint: {{joint_hidden: 16}}
data: {{generator: {{clips: 8, validation_clips: 2, seconds: 0.64, tokens: 3}}, dataloader_num_workers: 0}}
training: {{compute_dtype: float32, per_device_train_batch_size: 2, max_steps: 1, device: cpu}}
output_dir: run
"""
PIECES = ["<unk>", "\u2581", *"abcdehilmnoqrstuwy"]
TEXTS = ["one blue boat", "two red boats", "three boats sail by", "a quiet harbour"]


def octavo(folder, *words, code=0):
    done = subprocess.run(
        [BINARY, *map(str, words)],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def write_wav(path, seconds, hertz):
    count = int(16000 * seconds)
    samples = [int(9000 * math.sin(2 * math.pi * hertz * i / 16000)) for i in range(count)]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes(struct.pack(f"<{count}h", *samples))


def field(number, data):
    assert len(data) < 128
    return bytes([number << 3 | 2, len(data)]) + data


def tokenizer():
    """Returns a SentencePiece model of single letters, encoded by hand: pieces, scores, and the unknown
    piece."""
    out = b""
    for number, piece in enumerate(PIECES):
        kind = bytes([3 << 3, 2 if number == 0 else 1])
        out += field(1, field(1, piece.encode()) + struct.pack("<Bf", 2 << 3 | 5, -float(number)) + kind)
    return out


def lines(entries):
    return "".join(json.dumps(each) + "\n" for each in entries)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("evaluate")
    entries = []
    for number, text in enumerate(TEXTS):
        write_wav(path / f"{number}.wav", 1.0, 300 + 200 * number)
        lang = "en" if number % 2 else "ms"
        entries.append({"audio_filepath": f"{number}.wav", "duration": 1.0, "text": text, "lang": lang})
    (path / "train.jsonl").write_text(lines(entries))
    missing = {"audio_filepath": "missing.wav", "duration": 1.0, "text": "not there"}
    (path / "test.jsonl").write_text(lines([*entries, missing]) + "{broken\n")
    (path / "run.yaml").write_text(RUN.format(tokens=len(PIECES)))
    octavo(path, "train", "run.yaml")
    octavo(path, "export", "run", "model")
    (path / "model" / "tokenizer.model").write_bytes(tokenizer())
    return path


def test_a_model_on_a_manifest(folder):
    done = octavo(folder, "evaluate", "model", "test.jsonl", "--json", "out.json")
    result = json.loads((folder / "out.json").read_text())
    assert result["clips"] == 4
    assert result["words"] == sum(len(text.split()) for text in TEXTS)
    assert result["errors"] == result["substitutions"] + result["deletions"] + result["insertions"]
    assert result["wer"] == result["errors"] / result["words"]
    assert result["complete"] is True
    assert result["model"] == "model"
    assert [each["lang"] for each in result["by_lang"]] == ["en", "ms"]
    assert "by_speaker" not in result
    reasons = {each["place"]: each["reason"] for each in result["unheard"]}
    assert "missing.wav" in reasons["test.jsonl:5"]
    assert len(reasons) == 2
    assert done.stdout.startswith(f"WER {100 * result['wer']:.2f}%: ")
    shown = ("    said:        ", "    transcribed: ", "2 clips could not be transcribed")
    for part in ("\nlanguage", *shown, "test.jsonl:6:"):
        assert part in done.stdout, part


def test_the_first_clips(folder):
    done = octavo(folder, "evaluate", "model", "test.jsonl", "--limit", 2, "--worst", 1)
    assert " of 2 clips " in done.stdout
    assert done.stdout.count("said: ") == 1


def test_what_cannot_be_evaluated(folder):
    for words, parts in (
        (["model", "none.jsonl"], ["none.jsonl"]),
        (["model", "test.jsonl", "--json", "no/where.json"], ["--json", "no/where.json"]),
        (["model", "test.jsonl", "--limit", 0], ["--limit"]),
    ):
        done = octavo(folder, "evaluate", *words, code=2 if "none.jsonl" not in words else 1)
        assert done.stderr.startswith("octavo: ")
        for part in parts:
            assert part in done.stderr
    (folder / "gone.jsonl").write_text(lines([{"audio_filepath": "gone.wav", "duration": 1, "text": "a"}]))
    done = octavo(folder, "evaluate", "model", "gone.jsonl", code=1)
    assert "no clip could be transcribed; the first: " in done.stderr
    assert "gone.wav" in done.stderr


def test_ctrl_c_shows_the_errors_so_far(folder):
    many = (folder / "train.jsonl").read_text() * 500
    (folder / "many.jsonl").write_text(many)
    words = ["evaluate", "model", "many.jsonl", "--batch-seconds", "2", "--json", "part.json"]
    with subprocess.Popen(
        [BINARY, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        seen = next(line for line in process.stderr if " of 2,000 clips, WER " in line)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGINT, seen + out + errors
    assert "octavo: stopped by Ctrl-C after " in errors
    result = json.loads((folder / "part.json").read_text())
    assert result["complete"] is False
    assert 0 < result["clips"] < 2000
    assert out.startswith(f"WER {100 * result['wer']:.2f}%: ")
