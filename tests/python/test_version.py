"""The version has one home, include/octavo/version.h, and the library reports it."""

import ctypes
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_library_reports_the_version_of_the_header(library: ctypes.CDLL) -> None:
    header = (ROOT / "include/octavo/version.h").read_text()
    parts = [re.search(rf"OCTAVO_VERSION_{part} +(\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH")]
    library.octavo_version_string.restype = ctypes.c_char_p
    assert library.octavo_version_string().decode() == ".".join(parts)
