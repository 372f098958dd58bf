"""Tests `octavo bench loader`: its rows, a manifest's clips, and rejected options. No time is asserted."""

import json
import os
import pathlib
import struct
import subprocess
import wave

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("OCTAVO_BIN") or os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build/bin/octavo")


def loader(*arguments):
    return subprocess.run(
        [BINARY, "bench", "loader", *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module", autouse=True)
def built_in():
    done = loader("--length=0.1", "--seconds=0.01", "--workers=1")
    if "this build reads no recordings" in done.stderr:
        assert not os.environ.get("CI"), done.stderr
        pytest.skip("this build reads no recordings")


def test_clips_of_our_own():
    done = loader("--length=0.5", "--seconds=0.05", "--workers=1,2", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    assert [(row["clips"], row["workers"]) for row in rows] == [
        ("FLAC 16000 Hz", 1), ("FLAC 16000 Hz", 2), ("MP3 44100 Hz", 1), ("MP3 44100 Hz", 2)
    ]  # fmt: skip
    for row in rows:
        assert row["clips_per_second"] > 0
        assert row["times_real"] == pytest.approx(row["clips_per_second"] / 2)
        assert row["bad"] == 0


def test_clips_of_a_manifest(tmp_path):
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(struct.pack("<8000h", *range(8000)))
    lines = [("a.wav", 0.25, 0.5), ("none.wav", 0, 1)]
    manifest = tmp_path / "m.jsonl"
    manifest.write_text(
        "".join(
            json.dumps({"audio_filepath": path, "offset": offset, "duration": duration, "text": "a"}) + "\n"
            for path, offset, duration in lines
        )
    )
    done = loader(str(manifest), "--seconds=0.05", "--workers=1", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["times_real"] == pytest.approx(row["clips_per_second"] / 2)
    assert row["bad"] > 0
    assert "none.wav: cannot open" in row["error"]
    table = loader(str(manifest), "--seconds=0.05", "--workers=1")
    assert "bad: " in table.stdout
    assert "none.wav" in table.stdout


def test_what_is_refused(tmp_path):
    manifest = tmp_path / "m.jsonl"
    manifest.write_text('{"audio_filepath": "none.wav", "duration": 1, "text": "a"}\n')
    done = loader(str(manifest), "--seconds=0.01")
    assert done.returncode == 1
    assert "no clip could be read" in done.stderr
    assert "none.wav" in done.stderr
    assert loader("--workers=0").returncode == 2
    assert loader(str(tmp_path / "no.jsonl")).returncode != 0
