"""Tests processes.py: a row's result, and the reason of a row that fails, is killed or hangs."""

from __future__ import annotations

import importlib
import pathlib
import time
from typing import Any

import pytest

LAST_WORDS = "import atexit, sys\natexit.register(lambda: print('bye', file=sys.stderr))"


@pytest.fixture
def processes() -> Any:
    return importlib.import_module("processes")


def written(folder: pathlib.Path, text: str) -> str:
    (folder / "row.py").write_text(text)
    return str(folder / "row.py")


def test_the_last_line_is_the_result(processes: Any, tmp_path: pathlib.Path) -> None:
    script = written(tmp_path, "import sys; print('warming up'); print('{\"got\": \"%s\"}' % sys.argv[1])")
    assert processes.run_row(script, ["a b"]) == {"got": "a b"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{LAST_WORDS}\nraise ValueError('no x')", "ValueError: no x"),
        ("import sys; print('a line', file=sys.stderr); sys.exit(3)", "a line"),
        ("import sys; sys.exit(3)", "no message"),
        ("import os; os.abort()", "ended by SIGABRT: no message"),
    ],
)
def test_a_failure_has_its_reason(processes: Any, tmp_path: pathlib.Path, text: str, reason: str) -> None:
    with pytest.raises(processes.RowError, match=f"^{reason}$"):
        processes.run_row(written(tmp_path, text), [])


def test_a_row_that_hangs_is_killed_with_its_children(processes: Any, tmp_path: pathlib.Path) -> None:
    alive = tmp_path / "alive"
    child = f"import time, pathlib\nwhile True: pathlib.Path({str(alive)!r}).touch(); time.sleep(0.02)"
    text = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    with pytest.raises(processes.RowError, match=r"^no result within 1 s$"):
        processes.run_row(written(tmp_path, text), [], limit_s=1)
    alive.unlink(missing_ok=True)
    time.sleep(0.2)
    assert not alive.exists()
