"""Options, Markdown tables and JSON files of the benchmark scripts; needs only the standard library."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]


def octavo_command() -> pathlib.Path:
    return pathlib.Path(os.environ.get("OCTAVO_COMMAND", str(ROOT / "build/bin/octavo")))


def option_parser(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser whose help begins with the script's docstring."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",") if part]


def counts(text: str) -> list[int]:
    """Parses comma-separated numbers, each at least 1."""
    values = [int(part) for part in text.split(",")]
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"got {min(values)}, expected at least 1")
    return values


def some_of(known: Sequence[str]) -> Any:
    """Returns a parser of comma-separated names, each of which must be in `known`."""

    def parse(text: str) -> list[str]:
        names = [name for name in text.split(",") if name]
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"got {unknown[0]!r}, expected some of {', '.join(known)}")
        return names

    return parse


def require_positive(parser: argparse.ArgumentParser, options: argparse.Namespace, *names: str) -> None:
    for name in names:
        value = getattr(options, name.replace("-", "_"))
        if value < 1:
            parser.error(f"--{name}: got {value}, expected at least 1")


def matching(names: Iterable[str], wanted: str | None) -> list[str]:
    """Returns the names that contain one of the comma-separated texts; all names for no text."""
    texts = (wanted or "").split(",")
    return [name for name in names if any(text in name for text in texts)]


def select(parser: argparse.ArgumentParser, flag: str, names: Iterable[str], wanted: str | None) -> list[str]:
    names = list(names)
    found = matching(names, wanted)
    if not found:
        parser.error(f"{flag}: got {wanted!r}, expected a part of one of {', '.join(names)}")
    return found


def markdown_row(cells: Iterable[object]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def markdown_head(titles: Sequence[str]) -> str:
    return markdown_row(titles) + "\n" + "|---" * len(titles) + "|"


def markdown(titles: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    return "\n".join([markdown_head(titles), *map(markdown_row, rows)])


def write_json(path: str | os.PathLike[str] | None, value: Mapping[str, Any] | Sequence[Any]) -> None:
    """Writes the file of --json; does nothing without one."""
    if path:
        pathlib.Path(path).write_text(json.dumps(value, indent=2))


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no message"])[-1]


def run_octavo(command: str | os.PathLike[str], *arguments: str, show_progress: bool = False) -> Any:
    """Returns the JSON that the octavo command prints. Raises ValueError if the command fails.

    With `show_progress` the command's standard error goes to the terminal and not into the exception.
    """
    stderr = None if show_progress else subprocess.PIPE
    done = subprocess.run(
        [str(command), *arguments, "--json"], stdout=subprocess.PIPE, stderr=stderr, text=True
    )
    if done.returncode != 0:
        reason = (done.stderr or "").strip()
        raise ValueError(f"octavo {' '.join(arguments[:2])}: {reason}" if reason else f"{command} failed")
    return json.loads(done.stdout)
