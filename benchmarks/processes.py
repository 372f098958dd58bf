"""Runs a row of a benchmark in its own process, so that memory peaks do not mix and a failure ends one row.

The process prints its result as JSON in its last line. A process that exceeds its time limit is killed
together with its children.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

from report import last_line


class RowError(Exception):
    """A row without a result; the text gives the reason in one line."""


def _reason(text: str) -> str:
    """Returns the last exception that was printed, else the last line: warnings may follow at exit."""
    raised = [line for line in text.splitlines() if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
    return raised[-1].strip() if raised else last_line(text)


def forwarded(options: argparse.Namespace, names: Iterable[str]) -> list[str]:
    """Returns those of the options that have a value as arguments for another process."""
    values = {name: getattr(options, name.replace("-", "_")) for name in names}
    return [word for name, value in values.items() if value for word in (f"--{name}", str(value))]


def run_row(script: str, arguments: list[str], limit_s: float | None = None) -> dict[str, Any]:
    """Returns the result of `script` with these arguments. Raises RowError if it has none."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        command = [sys.executable, os.path.abspath(script), *arguments]
        child = subprocess.Popen(command, stdout=out, stderr=errors, start_new_session=True)
        try:
            status = child.wait(timeout=limit_s)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise RowError(f"no result within {limit_s:g} s") from None
            raise
        out.seek(0)
        errors.seek(0)
        printed, reason = out.read(), _reason(errors.read())
    if status < 0:
        raise RowError(f"ended by {signal.Signals(-status).name}: {reason}")
    if status != 0:
        raise RowError(reason)
    return dict(json.loads(printed.splitlines()[-1]))
