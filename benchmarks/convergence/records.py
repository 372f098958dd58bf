"""Finished runs of the convergence benchmark: a file of JSON lines, all with the same settings."""

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
    """The runs of the file; none where there is no file. A last line that was cut short is ignored."""
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
    """One more line. A line that a killed run left unfinished is cut off first."""
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
    """NaN and infinities as null, because JSON has neither."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def check_settings(
    path: pathlib.Path, records: Iterable[Record], settings: dict[str, Any], flag: str = "--results"
) -> None:
    """An error where a run was made with others; `flag` is what names the file."""
    for record in records:
        for name, value in settings.items():
            theirs = record["settings"].get(name)
            if theirs != value:
                raise ValueError(
                    f"{path} holds runs with {name}={theirs}, and this one has {name}={value}: "
                    f"they cannot be compared; name another place with {flag}"
                )
