"""Tests `octavo transcribe` with a tiny model: formats, folders, bad files and rejected arguments. The
transcripts are compared with their parts in tests/speech/recognizer_test.cc; long files are tested in
tests/audio/transcribe_test.cc."""

import json
import os
import pathlib
import struct
import subprocess
import wave

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build" / "bin" / "octavo")
TRAINER = pathlib.Path(BINARY).with_name("octavo-trainer")
pytestmark = pytest.mark.skipif(not TRAINER.exists(), reason="this build has no octavo-trainer (LibTorch)")

torch = pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

TOKENS = 24
RUN = f"""\
task: speech
model:
  name: fastconformer
  vocab_size: {TOKENS}
  encoder: {{feat_in: 16, subsampling_conv_channels: 4, n_layers: 1, d_model: 16, n_heads: 2}}
  decoder: {{pred_hidden: 16, pred_rnn_layers: 1}}
  joint: {{joint_hidden: 16}}
data:
  generator: {{clips: 2, validation_clips: 1, seconds: 0.64, tokens: 3}}
  dataloader_num_workers: 0
training: {{per_device_train_batch_size: 2, max_steps: 1, device: cpu}}
output_dir: run
"""


def octavo(folder, *words, code=0):
    done = subprocess.run(
        [BINARY, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def write_sound(path, seconds, rate=16000):
    count = int(seconds * rate)
    # The sound is a chirp in pulses.
    samples = [int(8000 * (i // 1000 % 3) * (((i * i) // 40000) % 200 - 100) / 200) for i in range(count)]
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(struct.pack(f"<{count}h", *samples))


def sentence_pieces():
    """Returns a SentencePiece model: protocol buffer messages with the minimal set of fields."""

    def field(number, payload):
        assert len(payload) < 128
        return bytes([number << 3 | 2, len(payload)]) + payload

    def piece(text, kind):  # 1: a normal piece, 2: the unknown piece
        return field(1, field(1, text.encode()) + b"\x15" + struct.pack("<f", 0) + bytes([3 << 3, kind]))

    texts = [("\u2581" if i % 2 else "") + chr(ord("a") + i) for i in range(1, TOKENS)]
    bpe = field(2, bytes([3 << 3, 2]))
    return (
        piece("<unk>", 2) + b"".join(piece(text, 1) for text in texts) + bpe + field(3, field(1, b"identity"))
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Makes a folder with `run` (of generated clips), `model` (files of a model that can transcribe) and
    recordings."""
    out = tmp_path_factory.mktemp("transcribe")
    (out / "run.yaml").write_text(RUN)
    octavo(out, "train", "run.yaml")
    octavo(out, "export", "run", "model")
    (out / "model" / "tokenizer.model").write_bytes(sentence_pieces())
    weights = safetensors.load_file(out / "model" / "model.safetensors")
    weights["joint.head.weight"] *= 50  # makes frames differ, so that some have labels
    weights["joint.head.bias"][0] = -1e4  # the unknown piece
    safetensors.save_file(weights, out / "model" / "model.safetensors", metadata={"format": "pt"})
    write_sound(out / "one.wav", 3)
    write_sound(out / "two.wav", 5, rate=22050)
    (out / "bad.wav").write_text("no recording")
    return out


def test_text_and_json(folder):
    one = octavo(folder, "transcribe", "model", "one.wav")
    assert one.stdout.strip()
    assert "times real time" in one.stderr
    both = octavo(folder, "transcribe", "model", "two.wav", "one.wav", "--batch-seconds", "3")
    assert both.stdout.splitlines()[1] == "one.wav: " + one.stdout.strip()
    assert both.stdout.splitlines()[0].startswith("two.wav: ")
    lines = octavo(
        folder, "transcribe", "model", "one.wav", "two.wav", "--format", "json"
    ).stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert [each["audio_filepath"] for each in found] == ["one.wav", "two.wav"]
    assert [each["duration"] for each in found] == [3, 5]
    assert found[0]["text"] == one.stdout.strip()
    for each in found:
        assert " ".join(word["word"] for word in each["words"]) == each["text"]
        times = [time for word in each["words"] for time in (word["start"], word["end"])]
        assert times == sorted(times)
        assert times[-1] <= each["duration"]


def test_files_of_subtitles(folder):
    words = ("transcribe", "model", "one.wav", "two.wav", "--format", "srt", "--output", "out")
    octavo(folder, *words)
    assert sorted(each.name for each in (folder / "out").iterdir()) == ["one.srt", "two.srt"]
    text = (folder / "out" / "one.srt").read_text()
    assert text.startswith("1\n00:00:0")
    assert "out/one.srt: is there already" in octavo(folder, *words, code=2).stderr
    (folder / "out" / "one.srt").write_text("")
    octavo(folder, *words, "--force")
    assert (folder / "out" / "one.srt").read_text() == text
    vtt = octavo(folder, "transcribe", "model", "one.wav", "--format", "vtt").stdout
    assert vtt.startswith("WEBVTT\n\n00:00:0")


def test_bad_files_are_named_and_the_others_go_on(folder):
    done = octavo(folder, "transcribe", "model", "bad.wav", "one.wav", "gone.wav", code=1)
    assert done.stdout.startswith("one.wav: ")
    assert "octavo: bad.wav: " in done.stderr
    assert "octavo: gone.wav: " in done.stderr
    assert "2 of 3 recordings could not be transcribed" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("run", "one.wav"), ["run/checkpoint-1", "no tokenizer", "generated clips"]),
        (("nothing", "one.wav"), ["nothing", "does not exist"]),
        (("model", "one.wav", "--checkpoint", "best"), ["model is not a run's folder"]),
        (("model", "one.wav", "two.wav", "--format", "vtt"), ["--format vtt", "--output"]),
        (("model", "one.wav", "one.wav", "--output", "twice"), ["one.wav and one.wav", "twice/one.txt"]),
        (("model", "one.wav", "--format", "doc"), ["--format", "doc"]),
        (("model",), ["audio"]),
    ],
)
def test_what_is_refused(folder, words, says):
    done = octavo(folder, "transcribe", *words, code=2)
    for word in says:
        assert word in done.stderr, done.stderr


def test_bench(folder):
    tiny = ("--size", "tiny", "--clips", "4", "--seconds", "1", "--device", "cpu", "--batch-seconds", "2")
    found = json.loads(octavo(folder, "bench", "transcribe", *tiny, "--from", "memory,wav", "--json").stdout)
    assert [(row["from"], row["batch_seconds"]) for row in found["rows"]] == [("memory", 2), ("wav", 2)]
    for row in found["rows"]:
        assert row["sound_seconds"] == pytest.approx(4)
        assert row["times_real_time"] == pytest.approx(4 / row["seconds"])
        assert 0 < row["tokens_per_second"] < 20
    table = octavo(folder, "bench", "transcribe", *tiny).stdout
    for part in ("speech model tiny (tdt, ", "random weights", "times real time", "tokens/s"):
        assert part in table
