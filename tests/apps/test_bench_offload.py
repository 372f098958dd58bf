"""Tests `octavo bench offload`: residences give equal bits, the trace, and rejected options. No time is
checked."""

import json
import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("OCTAVO_BIN") or os.environ.get("OCTAVO_COMMAND") or str(ROOT / "build/bin/octavo")
SMALL = ("--layers=3", "--numel=20000", "--work-ms=0.1", "--repeat=2", "--threads=2")


def offload(*arguments, **environment):
    given = {argument.partition("=")[0] for argument in arguments}
    small = [preset for preset in SMALL if preset.partition("=")[0] not in given]
    command = [BINARY, "bench", "offload", *small, *arguments]
    environment = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def rows_of(*arguments, **environment):
    done = offload("--json", *arguments, **environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["rows"]


@pytest.mark.parametrize(
    "options",
    [(), ("--clip",), ("--offload-gradients", "--state=4bit"), ("--offload-gradients", "--clip")],
    ids=" ".join,
)
def test_residences_agree(options):
    rows = rows_of(*options)
    assert [row["residence"] for row in rows] == ["device", "stream", "host"]
    assert len({row["checksum"] for row in rows}) == 1
    device, stream, host = rows
    assert device["device_state_bytes"] > 0
    assert device["host_bytes"] == stream["device_state_bytes"] == host["device_state_bytes"] == 0
    assert stream["host_bytes"] >= device["device_state_bytes"]
    assert host["host_bytes"] >= device["device_state_bytes"]


@pytest.mark.parametrize("seed", range(3))
def test_delays_change_nothing(seed):
    rows = rows_of("--offload-gradients", "--clip", OCTAVO_OFFLOAD_DELAYS=f"{seed}:2000")
    assert len({row["checksum"] for row in rows}) == 1


def test_weights_move():
    first, last = (rows_of("--residence=device", f"--repeat={n}")[0]["checksum"] for n in (1, 2))
    assert first != last


def test_a_trace_has_the_passes(tmp_path):
    file = tmp_path / "offload.json"
    done = offload("--residence=stream", f"--trace={file}")
    assert done.returncode == 0, done.stderr
    assert "3 layers of 20,000 parameters" in done.stdout
    events = json.loads(file.read_text())["traceEvents"]
    names = [event["name"] for event in events if event["ph"] == "X"]
    once = [f"forward {i}" for i in range(3)] + [f"backward {i}" for i in reversed(range(3))]
    assert [name for name in names if name.split()[0] in ("forward", "backward")] == 2 * once


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--residence=disk",), "--residence: got 'disk', expected device, host or stream"),
        (("--trace=a.json",), "--trace: got --residence device,stream,host, expected one of stream and host"),
        (("--state=9bit",), "--state: got '9bit'"),
        (("--layers=0",), "got '0', expected a whole number from 1 to 100000"),
    ],
    ids=str,
)
def test_wrong_options(options, words):
    done = offload(*options)
    assert done.returncode == 2
    assert words in done.stderr


def test_a_trace_that_cannot_be_written():
    done = offload("--residence=host", "--trace=/nowhere/a.json")
    assert done.returncode == 1
    assert "/nowhere/a.json" in done.stderr
