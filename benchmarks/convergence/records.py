"""Reads and writes finished runs: a file of JSON lines, all with the same settings."""

from __future__ import annotations

import json
import math
import os
import pathlib
from collections.abc import Iterable
from typing import Any

Record = dict[str, Any]
Key = tuple[str, int, float]


def key_of(record: Record) -> Key:
    return str(record["arm"]), int(record["seed"]), float(record["beta2"])


def load(path: pathlib.Path) -> list[Record]:
    """Returns the runs of the file, or none without a file. An incomplete last line is ignored."""
    lines = path.read_text().split("\n") if path.exists() else []
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            message = f"{path}, line {number}: not a JSON object ({error}); remove the line"
            raise ValueError(message) from error
    return records


def append(path: pathlib.Path, record: Record) -> None:
    """Appends a line. Removes an incomplete last line, which a killed run may leave, first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        file.seek(0)
        data = file.read()
        if data and not data.endswith(b"\n"):
            file.truncate(data.rfind(b"\n") + 1)
        file.write(json.dumps(finite(record), allow_nan=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def finite(value: Any) -> Any:
    """Replaces NaN and infinities by None, because JSON has neither."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_settings(
    path: pathlib.Path, records: Iterable[Record], settings: dict[str, Any], flag: str = "--results"
) -> None:
    """Raises ValueError if a run has other settings; `flag` is the option that names the file."""
    for record in records:
        for name, value in settings.items():
            theirs = record["settings"].get(name)
            if theirs != value:
                raise ValueError(
                    f"{path} holds runs with {name}={theirs}, and this one has {name}={value}: "
                    f"they cannot be compared; name another place with {flag}"
                )
