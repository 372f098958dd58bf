"""Tests `octavo data make-text` as a subprocess: sizes, reproducible bytes, files that are not replaced,
errors.

OCTAVO_BIN (or OCTAVO_COMMAND) names the binary; the default is build/bin/octavo.
"""

import gzip
import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFAULT_BINARY = ROOT / "build" / "bin" / "octavo"
BINARY = os.environ.get("OCTAVO_BIN") or os.environ.get("OCTAVO_COMMAND") or str(DEFAULT_BINARY)


def make_text(*args):
    command = [BINARY, "data", "make-text", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def made(path, *args):
    done = make_text(path, *args)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return path.read_bytes()


def assert_fails(done, exit_code, *words):
    assert done.returncode == exit_code
    assert done.stdout == ""
    assert done.stderr.startswith("octavo: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


def test_default(tmp_path):
    done = make_text(tmp_path / "corpus.txt")
    assert done.returncode == 0, done.stderr
    line = r"corpus\.txt: 2000000 bytes, unigram entropy 3\.\d{3} nats per byte \(.*\)\n$"
    assert re.search(line, done.stdout)
    text = (tmp_path / "corpus.txt").read_bytes()
    assert len(text) == 2_000_000
    assert os.listdir(tmp_path) == ["corpus.txt"]
    assert 3 < len(text) / len(gzip.compress(text, 9)) < 5  # neither noise nor repetition


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("999", 999),
        ("500k", 500_000),
        ("20K", 20_000),
        ("1M", 10**6),
        ("64Ki", 65536),
        ("2^10", 1024),
    ],
)
def test_sizes(tmp_path, text, size):
    assert len(made(tmp_path / "a", "--bytes", text)) == size


def test_seeds_and_prefixes(tmp_path):
    long = made(tmp_path / "long", "--bytes", "100k", "--seed", "7")
    assert made(tmp_path / "short", "--bytes", "1000", "--seed", "7") == long[:1000]
    assert made(tmp_path / "other", "--bytes", "100k", "--seed", "8") != long


def test_the_same_text_is_left_alone(tmp_path):
    path = tmp_path / "a"
    text = made(path, "--bytes", "50k")
    before = path.stat()
    done = make_text(path, "--bytes", "50k")
    assert done.returncode == 0
    assert "was there already" in done.stdout
    after = path.stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert path.read_bytes() == text


@pytest.mark.parametrize("args", [("--bytes", "50k", "--seed", "2"), ("--bytes", "49k")])
def test_another_file_is_only_replaced_by_force(tmp_path, args):
    path = tmp_path / "a"
    text = made(path, "--bytes", "50k")
    assert_fails(make_text(path, *args), 1, str(path), "--force")
    assert path.read_bytes() == text
    assert made(path, *args, "--force") != text
    assert os.listdir(tmp_path) == ["a"]


def test_an_empty_file_is_kept_too(tmp_path):
    path = tmp_path / "a"
    path.touch()
    assert_fails(make_text(path, "--bytes", "1k"), 1, "--force")
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--bytes", "0"], ["--bytes", "got '0'"]),
        (["--bytes", "2T"], ["--bytes", "got '2T'", "64M"]),
        (["--bytes", "1.5M"], ["--bytes"]),
        (["--seed", "-1"], ["--seed"]),
        (["--seed", "x"], ["--seed", "got 'x'"]),
        (["--sead", "1"], ["--sead", "octavo data make-text --help"]),
    ],
)
def test_wrong_usage(tmp_path, args, words):
    assert_fails(make_text(tmp_path / "a", *args), 2, *words)
    assert os.listdir(tmp_path) == []


def test_the_file_is_required():
    assert_fails(make_text(), 2, "FILE")


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_a_folder_is_no_file(tmp_path, force):
    done = make_text(tmp_path, *force)
    assert done.returncode != 0
    assert str(tmp_path) in done.stderr
    assert tmp_path.is_dir()


def test_a_folder_that_is_not_there(tmp_path):
    assert_fails(make_text(tmp_path / "no" / "a"), 1, str(tmp_path / "no"), "No such file or directory")
