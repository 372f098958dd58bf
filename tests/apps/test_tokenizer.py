"""Tests `octavo data make-tokenizer` as a subprocess: its output files, reproducible bytes, errors.

OCTAVO_BIN (or OCTAVO_COMMAND) names the binary; the default is build/bin/octavo.
"""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = (
    os.environ.get("OCTAVO_BIN") or os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build" / "bin" / "octavo")
)
WORDS = ["three", "blue", "boats", "sail", "over", "quiet", "water", "häuser"]


def make_tokenizer(*args):
    command = [BINARY, "data", "make-tokenizer", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "no SentencePiece" in done.stderr:
        pytest.skip("this build has no SentencePiece")
    return done


@pytest.fixture
def manifest(tmp_path):
    path = tmp_path / "train.jsonl"
    lines = []
    for i in range(60):
        text = " ".join(WORDS[(i * 7 + k * (i % 5 + 1)) % len(WORDS)] for k in range(3 + i % 4))
        lines.append(json.dumps({"audio_filepath": f"{i}.wav", "duration": 0.01 + i, "text": text}))
    path.write_text("\n".join(lines))
    return path


def test_a_folder_as_nemo_makes_it(tmp_path, manifest):
    done = make_tokenizer(tmp_path / "a", manifest, "--vocab-size", 40)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "40 tokens (bpe) of 60 texts" in done.stdout  # clips of every length are included
    assert f"model.tokenizer.dir: {tmp_path / 'a'}" in done.stdout
    assert sorted(os.listdir(tmp_path / "a")) == ["tokenizer.model", "tokenizer.vocab", "vocab.txt"]
    scores = (tmp_path / "a" / "tokenizer.vocab").read_text().splitlines()
    assert len(scores) == 40
    assert scores[0] == "<unk>\t0"
    assert (tmp_path / "a" / "vocab.txt").read_text().splitlines() == [
        line.split("\t")[0] for line in scores[1:]
    ]
    # A .txt file with the same texts gives the same bytes.
    texts = [json.loads(line)["text"] for line in manifest.read_text().splitlines()]
    (tmp_path / "texts.txt").write_text("\n".join(texts) + "\n\n")
    assert make_tokenizer(tmp_path / "b", tmp_path / "texts.txt", "--vocab-size", 40).returncode == 0
    first, second = ((tmp_path / name / "tokenizer.model").read_bytes() for name in "ab")
    assert first == second


def test_errors(tmp_path, manifest):
    assert make_tokenizer(tmp_path / "a", manifest, "--vocab-size", 40, "--type", "unigram").returncode == 0
    done = make_tokenizer(tmp_path / "a", manifest)
    assert done.returncode == 2
    assert "tokenizer.model: is there already" in done.stderr
    done = make_tokenizer(tmp_path / "a", manifest, "--force")
    assert done.returncode == 0
    assert "warning: the texts give" in done.stderr
    bad = tmp_path / "bad.jsonl"
    bad.write_text(manifest.read_text() + '\n{"audio_filepath": "x", "duration": "3"}\n')
    done = make_tokenizer(tmp_path / "c", bad)
    assert done.returncode == 2
    assert f"{bad}:61:37: duration: expected a number" in done.stderr
    assert "(--skip-bad skips bad lines" in done.stderr
    done = make_tokenizer(tmp_path / "c", bad, "--skip-bad", "--vocab-size", 40)
    assert done.returncode == 0
    assert "1 bad line skipped, the first" in done.stderr
    done = make_tokenizer(tmp_path / "d", manifest, "--vocab-size", 5)
    assert done.returncode == 2
    assert "a tokenizer of 5 tokens could not be trained" in done.stderr
    assert not (tmp_path / "d").exists()
    assert make_tokenizer(tmp_path / "d", manifest, "--type", "wpe").returncode == 2
