"""The messages that docs/troubleshooting.md shows are those in the sources."""

from __future__ import annotations

import functools
import re

import pages
import pytest

_SOURCES = ("*.cc", "*.h", "*.hpp", "*.cu", "*.cuh", "*.py", "*.cmake", "bootstrap", "CMakeLists.txt")
_FOLDERS = ("src", "train", "apps", "cli", "adapters", "cmake", "scripts")


@functools.cache
def sources() -> str:
    """All sources in one text, with the string literals that the compiler joins joined."""
    files = (file for folder in _FOLDERS for kind in _SOURCES for file in (pages.ROOT / folder).rglob(kind))
    text = "\n".join(file.read_text(encoding="utf-8") for file in sorted(files))
    return re.sub(r"\"(?:\s*#[^\n]*)?\s*\n\s*(?:f|R)?\"", "", text)


def is_in_sources(message: str) -> bool:
    """Whether every literal part of a message, between the …, stands in the sources."""
    parts = [part.strip(" ()'") for part in re.split("…", message)]
    return all(part in sources() for part in parts if len(part) > 2)


def headings() -> list[str]:
    text = (pages.ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    found = re.findall(r"^### (.*)$", text, re.MULTILINE)
    # The others say what another program prints, or what is seen without a message.
    return [heading.strip("`") for heading in found if heading.startswith("`")]


@pytest.mark.parametrize("message", headings())
def test_message_is_printed_by_the_code(message: str) -> None:
    assert is_in_sources(message), f"no source has {message!r}"


def test_a_message_that_nobody_prints_is_seen() -> None:
    assert len(headings()) > 20
    assert not is_in_sources("… this message was never written, expected …")
