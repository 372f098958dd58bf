"""The version has one home, include/octavo/version.h, and the library reports it."""

import ctypes
import pathlib
import re

import pytest
from octavo import _abi

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_library_reports_the_version_of_the_header(library: ctypes.CDLL) -> None:
    header = (ROOT / "include/octavo/version.h").read_text()
    parts = [re.search(rf"OCTAVO_VERSION_{part} +(\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH")]
    library.octavo_version_string.restype = ctypes.c_char_p
    assert library.octavo_version_string().decode() == ".".join(parts)


def test_a_library_of_another_release_is_named_as_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """It has another version of the C ABI and lacks most functions."""

    class Library:
        def octavo_abi_version(self) -> int:
            return 999

    monkeypatch.setattr(_abi, "library_path", lambda: tmp_path)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: Library())
    with pytest.raises(
        _abi.OctavoError, match=r"has version 999 of the C ABI.*install both from one release"
    ):
        _abi.library.__wrapped__()
