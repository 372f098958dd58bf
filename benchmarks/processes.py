"""A row of a benchmark in a process of its own, so that peaks of memory do not mix and a failure stays alone.

The process prints its result as JSON in its last line. What hangs is ended with all that it has started.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from typing import Any


class RowError(Exception):
    """A row without a result; the text says why in one line."""


def _reason(text: str) -> str:
    """The last exception that was printed, else the last line: warnings may follow at exit."""
    lines = text.strip().splitlines() or ["no message"]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
    return (raised or lines)[-1].strip()


def run_row(script: str, arguments: list[str], limit_s: float | None = None) -> dict[str, Any]:
    """The result of `script` with these arguments; RowError where there is none."""
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
        printed, said = out.read(), errors.read()
    if status < 0:
        raise RowError(f"ended by {signal.Signals(-status).name}: {_reason(said)}")
    if status != 0:
        raise RowError(_reason(said))
    return dict(json.loads(printed.splitlines()[-1]))
