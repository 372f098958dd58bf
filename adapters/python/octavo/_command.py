"""The command `octavo` of an installed package: runs the program in the folder bin/ beside the library's."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ._abi import OctavoError, library_path


def main() -> NoReturn:
    try:
        program = library_path().parents[1] / "bin/octavo"
    except OctavoError as error:
        sys.exit(f"octavo: {error}")
    try:
        os.execv(program, ["octavo", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"octavo: {program} cannot be run: {error.strerror}")
