"""Tests emulate_archs.py with a fake command, without a GPU."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The fake command is twice as slow with a preloaded library, and has other bits if its name contains `odd`.
# A shell script starts it, because an interpreter path after #! cannot contain spaces.
COMMAND = """import json, os, sys
over = os.environ.get("LD_PRELOAD", "")
states = sys.argv[sys.argv.index("--state") + 1].split(",")
rows = [{{"state": state, "ms_median": 2.0 if over else 1.0, "percent_of_copy": 80.0,
         "checksum": "b" if "{odd}" in over else "a", "error": None}} for state in states]
print(json.dumps({{"rows": rows}}))
"""


def run(build: pathlib.Path, odd: str, archs: list[str]) -> subprocess.CompletedProcess[str]:
    (build / "bin").mkdir()
    command, program = build / "bin/octavo", build / "command.py"
    program.write_text(COMMAND.format(odd=odd))
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}" "$@"\n')
    command.chmod(0o755)
    for arch in archs:
        (build / "as" / arch).mkdir(parents=True)
        (build / "as" / arch / "liboctavo.so").symlink_to(libc())
    command_line = [sys.executable, str(ROOT / "benchmarks/emulate_archs.py"), "--build", str(build)]
    command_line += ["--state", "8bit,fp8"]
    return subprocess.run(command_line, capture_output=True, text=True)


def libc() -> str:
    """Returns a library that can be preloaded."""
    maps = pathlib.Path("/proc/self/maps").read_text().split()
    return next(word for word in maps if "/libc.so" in word or "/libc-" in word)


def test_equal_bits(tmp_path: pathlib.Path) -> None:
    done = run(tmp_path, "none", ["1200", "860"])
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[-4:] == ["as", "860", "as", "1200"]
    assert lines[1].split() == ["fp32", "8bit", "1.0000", "80.0", "2.00x", "2.00x"]
    assert len(lines) == 1 + 3 * 2 + 1
    assert "the bits are equal" in lines[-1]


def test_other_bits(tmp_path: pathlib.Path) -> None:
    done = run(tmp_path, "as/860", ["860", "1200"])
    assert done.returncode == 1
    assert "checksums differ: bf16+8 weights, fp8 states as 860" in done.stdout
    assert "1200" not in done.stdout.split("checksums", 1)[1]


def test_a_file_that_is_not_a_library(tmp_path: pathlib.Path) -> None:
    (tmp_path / "as/900").mkdir(parents=True)
    (tmp_path / "as/900/liboctavo.so").write_text("no library")
    done = run(tmp_path, "none", [])
    assert done.returncode != 0
    assert "cannot be preloaded" in done.stderr


@pytest.mark.parametrize("built", [False, True])
def test_no_libraries(tmp_path: pathlib.Path, built: bool) -> None:
    if built:
        (tmp_path / "as").mkdir()
    done = run(tmp_path, "none", [])
    assert done.returncode != 0
    assert "OCTAVO_CUDA_AS" in done.stderr
