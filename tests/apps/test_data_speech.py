"""Tests `octavo data make-speech`, `split` and `check` as subprocesses.

A stand-in for espeak-ng comes first in PATH, so that tests need no voices. It writes a tone that depends
on the text, and logs its arguments. OCTAVO_BIN (or OCTAVO_COMMAND) names the binary; the default is
build/bin/octavo.
"""

import itertools
import json
import math
import os
import pathlib
import re
import stat
import struct
import subprocess
import sys
import wave

import pytest
from browser import Browsed, Elements

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFAULT_BINARY = ROOT / "build" / "bin" / "octavo"
BINARY = os.environ.get("OCTAVO_BIN") or os.environ.get("OCTAVO_COMMAND") or str(DEFAULT_BINARY)

STAND_IN = """
import math, os, struct, sys
arguments = sys.argv[1:]
text = sys.stdin.read()
with open(os.environ["SPOKEN"], "a") as log:
    log.write(" ".join(arguments) + "|" + text + "\\n")
if "nobody" in arguments:
    sys.exit(1)
count = 100 * len(text)
pitch = 0.05 + sum(i * ord(c) for i, c in enumerate(text)) % 997 / 5000
tone = [int(8000 * math.sin(i * pitch)) for i in range(count)]
header = b"RIFF    WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 22050, 44100, 2, 16) + b"data    "
sys.stdout.buffer.write(header + struct.pack(f"<{count}h", *tone))
"""


@pytest.fixture
def octavo(tmp_path, monkeypatch):
    programs = tmp_path / "programs"
    programs.mkdir()
    script = programs / "stand_in.py"
    script.write_text(STAND_IN)
    stand_in = programs / "espeak-ng"
    # A shell script is needed, because a #! line cannot name an interpreter whose path contains a space.
    stand_in.write_text(f'#!/bin/sh\nexec "{sys.executable}" -SE "{script}" "$@"\n')
    stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("SPOKEN", str(tmp_path / "spoken"))

    def run(*args):
        return subprocess.run(
            [BINARY, "data", *map(str, args)], capture_output=True, text=True, timeout=300, check=False
        )

    if "libsndfile" in run("make-speech", tmp_path / "probe", "--voices", "nobody").stderr:
        pytest.skip("this octavo was built without recordings")
    (tmp_path / "spoken").unlink()
    return run


def entries(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_fails(done, exit_code, *words):
    assert done.returncode == exit_code, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("octavo: ")
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


# One sentence per clip, without silence around it.
BARE = ["--silence", 0, "--joined", 0]


def test_make_speech(tmp_path, octavo):
    folder = tmp_path / "speech"
    request = [folder, "--clips", 12, "--val-clips", 3, "--voices", "en-us,en-gb+f3", "--format", "wav"]
    request += BARE
    done = octavo("make-speech", *request)
    assert done.returncode == 0, done.stderr
    assert "12 clips" in done.stdout
    assert "2 voices" in done.stdout
    train, val = entries(folder / "train.jsonl"), entries(folder / "val.jsonl")
    assert (len(train), len(val)) == (12, 3)
    assert len({each["text"] for each in train + val}) == 15
    assert {each["speaker"] for each in train} == {"en-us", "en-gb+f3"}
    assert {each["lang"] for each in train} == {"en"}
    calls = [line.split("|") for line in (tmp_path / "spoken").read_text().splitlines()]
    assert len(calls) == 2 + 15  # every voice is tried before any clip is made
    for each in train + val:
        assert each["text"] == each["text"].lower().strip()
        samples = math.ceil(100 * len(each["text"]) * 16000 / 22050)
        assert each["duration"] == pytest.approx(samples / 16000, abs=6e-4)
        assert (folder / each["audio_filepath"]).stat().st_size == 44 + 2 * samples
        call = next(arguments for arguments, text in calls[2:] if text == each["text"])
        assert f"-v {each['speaker']} " in call
        assert 150 <= int(call.split("-s ")[1].split()[0]) <= 190

    before = (folder / "train.jsonl").stat()
    again = octavo("make-speech", *request)
    assert again.returncode == 0
    assert "was there already" in again.stdout
    assert (folder / "train.jsonl").stat() == before
    assert_fails(octavo("make-speech", *request, "--seed", 2), 1, str(folder), "--force")
    forced = octavo("make-speech", *request, "--seed", 2, "--force")
    assert forced.returncode == 0, forced.stderr
    assert entries(folder / "train.jsonl") != train


def test_make_speech_reads_a_file(tmp_path, octavo):
    lines = ["first line", "", " second line ", "first line", "-v third"]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    args = ["make-speech", tmp_path / "own", "--text", tmp_path / "lines.txt", "--format", "wav"]
    done = octavo(*args, *BARE, "--clips", 2, "--val-clips", 1)
    assert done.returncode == 0, done.stderr
    texts = [each["text"] for each in entries(tmp_path / "own" / "train.jsonl")]
    assert texts == ["first line", "second line"]
    assert entries(tmp_path / "own" / "val.jsonl")[0]["text"] == "-v third"
    assert_fails(octavo(*args, "--clips", 3, "--val-clips", 1), 2, "4 in all", "only 3 different sentences")


def read_wav(path):
    with wave.open(str(path), "rb") as file:
        return struct.unpack(f"<{file.getnframes()}h", file.readframes(file.getnframes()))


def silences(samples, least=0.02, rate=16000):
    """Returns the silence before and after the speech, and the pauses of at least `least` seconds in it."""
    loud = [i for i, sample in enumerate(samples) if abs(sample) > 300]
    pauses = [(b - a) / rate for a, b in itertools.pairwise(loud) if b - a > least * rate]
    return loud[0] / rate, (len(samples) - loud[-1]) / rate, pauses


def test_make_speech_has_silence_and_joined_clips(tmp_path, octavo):
    """A model trained on single sentences without silence recognizes nothing else."""
    # Each line has a different length, so that its tone differs, too.
    lines = [f"line {'very ' * (1 + i % 3)}{i}" for i in range(100)]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    args = ["--text", tmp_path / "lines.txt", "--format", "wav", "--clips", 48, "--val-clips", 12]
    folder = tmp_path / "speech"
    done = octavo("make-speech", folder, *args, "--silence", 0.4)
    assert done.returncode == 0, done.stderr
    parts = {part: entries(folder / f"{part}.jsonl") for part in ("train", "val")}
    sentences = {
        part: [re.findall(r"line [a-z ]*\d+", each["text"]) for each in clips]
        for part, clips in parts.items()
    }
    first = [each[0] for part in sentences.values() for each in part]
    assert first == lines[:60]  # each text once as a clip's first sentence
    assert {len(each) for each in sentences["train"]} == {1, 2, 3}
    assert 6 <= sum(len(each) > 1 for each in sentences["train"]) <= 28  # about a third of 48
    held_out = {sentence for each in sentences["val"] for sentence in each}
    assert held_out <= set(lines[48:60])  # no sentence of train

    leads, tails, gaps = [], [], []
    for part, clips in parts.items():
        for clip, said in zip(clips, sentences[part], strict=True):
            samples = read_wav(folder / clip["audio_filepath"])
            assert clip["duration"] == pytest.approx(len(samples) / 16000, abs=6e-4)
            lead, tail, pauses = silences(samples)
            assert len(pauses) <= len(said) - 1  # a pause may be shorter than the threshold
            speech = sum(math.ceil(100 * len(each) * 16000 / 22050) for each in said) / 16000
            assert clip["duration"] == pytest.approx(speech + lead + tail + sum(pauses), abs=0.1)
            leads.append(lead)
            tails.append(tail)
            gaps += pauses
    for each in (leads, tails):
        assert max(each) <= 0.42
        assert max(each) - min(each) > 0.2
    assert 0.3 < max(gaps) <= 0.75

    again = tmp_path / "again"
    assert octavo("make-speech", again, *args, "--silence", 0.4, "--jobs", 1).returncode == 0
    for part, clips in parts.items():
        assert (again / f"{part}.jsonl").read_text() == (folder / f"{part}.jsonl").read_text()
        for clip in clips:
            path = clip["audio_filepath"]
            assert (again / path).read_bytes() == (folder / path).read_bytes()
    other = tmp_path / "other"
    assert octavo("make-speech", other, *args, "--silence", 0.4, "--seed", 2).returncode == 0
    assert (other / "train.jsonl").read_text() != (folder / "train.jsonl").read_text()
    # Shorter silences make a different plan, and the folder is not replaced without --force.
    assert_fails(octavo("make-speech", folder, *args, "--silence", 0.3), 1, str(folder), "--force")
    assert_fails(octavo("make-speech", tmp_path / "no", *args, "--joined", 1.5), 2, "--joined")


def test_make_speech_joins_no_clip_beyond_15_seconds(tmp_path, octavo):
    """Training skips clips of more than 20 s, so three long lines in one clip would be lost."""
    lines = [f"line {i} " + "long " * 240 for i in range(10)]  # about 5.5 s each
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    folder = tmp_path / "speech"
    args = [
        "--text",
        tmp_path / "lines.txt",
        "--format",
        "wav",
        "--clips",
        8,
        "--val-clips",
        2,
        "--joined",
        1,
    ]
    done = octavo("make-speech", folder, *args)
    assert done.returncode == 0, done.stderr
    clips = entries(folder / "train.jsonl") + entries(folder / "val.jsonl")
    assert {each["text"].count("line") for each in clips} == {2}
    assert all(10.9 < each["duration"] < 13.5 for each in clips)


def test_make_speech_that_fails_makes_nothing(tmp_path, octavo, monkeypatch):
    folder = tmp_path / "speech"
    assert_fails(octavo("make-speech", folder, "--voices", "en-us,nobody"), 1, "nobody", "--voices")
    assert_fails(octavo("make-speech", folder, "--clips", "0"), 2, "--clips")
    assert_fails(octavo("make-speech", folder, "--slowest", "200"), 2, "--slowest", "190")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert_fails(octavo("make-speech", folder), 1, "install the package espeak-ng")
    assert not folder.exists()


def manifest_lines(count=40, speakers=8):
    line = '{{"audio_filepath": "a/{}.wav", "offset": {}, "duration": 1.5, "text": "t {}", "speaker": "s{}"}}'
    return [line.format(i // 2, i % 2, i, i % speakers) for i in range(count)]


def test_split(tmp_path, octavo):
    lines = manifest_lines()
    manifest = tmp_path / "all.jsonl"
    manifest.write_text("\n".join(lines) + "\n")
    done = octavo("split", manifest, "--share", "0.2")
    assert done.returncode == 0, done.stderr
    assert "all.val.jsonl: 8 clips, 12 s" in done.stdout
    train = (tmp_path / "all.train.jsonl").read_text().splitlines()
    val = (tmp_path / "all.val.jsonl").read_text().splitlines()
    assert sorted(train + val) == sorted(lines)  # the same bytes
    assert [line for line in lines if line in train] == train  # in the original order
    recordings = [{json.loads(line)["audio_filepath"] for line in part} for part in (train, val)]
    assert recordings[0].isdisjoint(recordings[1])

    # The order of the lines does not matter, but the seed does.
    manifest.write_text("\n".join(reversed(lines)))
    assert octavo("split", manifest, "--share", "0.2", "--force").returncode == 0
    assert sorted((tmp_path / "all.val.jsonl").read_text().splitlines()) == sorted(val)
    assert octavo("split", manifest, "--share", "0.2", "--seed", "2", "--force").returncode == 0
    assert sorted((tmp_path / "all.val.jsonl").read_text().splitlines()) != sorted(val)


def test_split_by_speaker_into_other_folders(tmp_path, octavo):
    manifest = tmp_path / "all.jsonl"
    manifest.write_text("\n".join(manifest_lines()))
    (tmp_path / "a").mkdir()
    for i in range(20):
        (tmp_path / "a" / f"{i}.wav").touch()
    (tmp_path / "parts").mkdir()
    parts = [tmp_path / "parts" / "train.jsonl", tmp_path / "val.jsonl"]
    args = [
        "split",
        manifest,
        "--together",
        "speaker",
        "--clips",
        "6",
        "--train",
        parts[0],
        "--val",
        parts[1],
    ]
    done = octavo(*args)
    assert done.returncode == 0, done.stderr
    train, val = entries(parts[0]), entries(parts[1])
    assert (len(train), len(val)) == (30, 10)  # two speakers of five clips each
    assert {each["speaker"] for each in train}.isdisjoint({each["speaker"] for each in val})
    assert all(each["audio_filepath"].startswith("../a/") for each in train)
    assert all(each["audio_filepath"].startswith("a/") for each in val)
    assert_fails(octavo(*args), 1, "train.jsonl", "--force")


def test_split_refuses(tmp_path, octavo):
    manifest = tmp_path / "all.jsonl"
    manifest.write_text("\n".join(manifest_lines(4, 1)))
    assert_fails(octavo("split", manifest, "--together", "speaker"), 2, "4 clips in 1 groups")
    assert_fails(octavo("split", manifest, "--together", "lang"), 2, "all.jsonl:1", "lang")
    assert_fails(octavo("split", manifest, "--train", manifest), 2, "cannot replace")
    assert_fails(octavo("split", manifest, "--share", "0.5", "--clips", "2"), 2, "--share")
    manifest.write_text('{"audio_filepath": "a.wav", "duration": 1, "text": "x"}\n{"audio_filepath": 3}\n')
    assert_fails(octavo("split", manifest), 2, "all.jsonl:2")
    assert_fails(octavo("split", tmp_path / "none.jsonl"), 1, "none.jsonl")
    assert {each.name for each in tmp_path.iterdir()} == {"all.jsonl", "programs"}


def write_wav(path, samples, rate=16000, channels=1):
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(struct.pack(f"<{len(samples)}h", *samples))


def tone(seconds, pitch=0.1, height=8000, rate=16000):
    return [int(height * math.sin(i * pitch)) for i in range(int(seconds * rate))]


def test_check(tmp_path, octavo):
    """Every kind of finding occurs as often as `found` expects."""
    write_wav(tmp_path / "good.wav", tone(2))
    write_wav(tmp_path / "copy.wav", tone(2))
    write_wav(tmp_path / "stereo.wav", tone(2, 0.07), rate=8000, channels=2)
    write_wav(tmp_path / "silent.wav", [3] * 16000)
    write_wav(tmp_path / "loud.wav", [max(-32768, min(32767, x)) for x in tone(1, 0.05, 60000)])
    write_wav(tmp_path / "long.wav", tone(5, 0.03))
    (tmp_path / "cut.wav").write_bytes((tmp_path / "long.wav").read_bytes()[:50000])
    entry = '{{"audio_filepath": "{}", "duration": {}, "text": "{}"}}'
    lines = [
        entry.format("good.wav", 2, "it is good"),
        entry.format("copy.wav", 2, "it is good"),
        entry.format("./good.wav", 2, "it is bad"),
        entry.format("stereo.wav", 2, "two sides"),
        entry.format("silent.wav", 1, "nobody"),
        entry.format("loud.wav", 1, "so many words that nobody can say them in a second"),
        entry.format("long.wav", 1.5, ""),
        entry.format("cut.wav", 5, "cut"),
        entry.format("<script>.wav", 1, "not there"),
        entry.format("good.wav", 60, "left out"),
        '{"audio_filepath": "good.wav", "duration": "long"}',
    ]
    manifest = tmp_path / "all.jsonl"
    manifest.write_text("\n".join(lines))
    done = octavo("check", manifest)
    assert done.returncode == 1
    found = {
        name: int(count)
        for name, count in re.findall(r"^([a-z][a-z ]+?)  +(\d+)  ", done.stdout, re.MULTILINE)
    }
    assert found == {
        "bad lines": 1,
        "unreadable": 2,
        "silent": 1,
        "two texts": 1,
        "no text": 1,
        "too much text": 1,
        "clipped": 1,
        "twice": 1,
        "more audio": 1,
        "skipped": 1,
    }
    assert "7 clips (12 s) of 11 lines" in done.stdout
    assert "all.jsonl:11:" in done.stdout
    assert "5 clips or lines must be fixed" in done.stderr
    page = tmp_path / "all.check.html"
    assert Elements(page.read_text(encoding="utf-8")).ids("script") == ["data", None, None]
    seen = Browsed(page, tmp_path)
    assert seen.console == []
    assert seen.elements.count("figure", "histogram") == 4  # durations, pace, level and peak
    for words in (
        "8000 Hz",
        "16000 Hz",
        "<script>.wav",
        "Duration",
        "Pace",
        "Characters",
        "To mend 5 clips and lines",
    ):
        assert words in seen.elements.text


def test_check_of_a_good_manifest(tmp_path, octavo):
    folder = tmp_path / "speech"
    assert octavo("make-speech", folder, "--clips", 5, "--val-clips", 1, "--format", "wav").returncode == 0
    done = octavo(
        "check", folder / "train.jsonl", folder / "val.jsonl", "-o", tmp_path / "page.html", "--jobs", 2
    )
    assert done.returncode == 0, done.stderr
    assert "6 clips" in done.stdout
    assert "Nothing to mend" in Browsed(tmp_path / "page.html", tmp_path).elements.text
    assert_fails(octavo("check", tmp_path / "none.jsonl"), 1, "none.jsonl")


def test_check_against_a_tokenizer(tmp_path, octavo):
    texts = ["plain words", "caf\u00e9 au lait", "more plain words"]
    lines = []
    for i, text in enumerate(texts):
        write_wav(tmp_path / f"{i}.wav", tone(2, 0.05 + 0.01 * i))
        lines.append(json.dumps({"audio_filepath": f"{i}.wav", "duration": 2, "text": text}))
    (tmp_path / "all.jsonl").write_text("\n".join(lines))
    (tmp_path / "ascii.txt").write_text("plain words\nmore plain words\ncafe au lait\n")
    made = octavo(
        "make-tokenizer", tmp_path / "chars", tmp_path / "ascii.txt", "--type", "char", "--vocab-size", "17"
    )
    assert made.returncode == 0, made.stderr
    done = octavo("check", tmp_path / "all.jsonl", "--tokenizer", tmp_path / "chars" / "tokenizer.model")
    assert done.returncode == 1
    assert re.search(r"^unknown characters +1 ", done.stdout, re.MULTILINE)
    assert "all.jsonl:2: the tokenizer does not have: \u00e9" in done.stdout
    seen = Browsed(tmp_path / "all.check.html", tmp_path)
    assert seen.elements.count("figure", "histogram") == 5  # tokens, too
    assert '<span class="differs">\u00e9' in seen.dom
