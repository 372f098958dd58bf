"""The command `octavo` of an installed package: replaces this process by the program that is beside the library."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ._abi import OctavoError, library_path


def main() -> NoReturn:
    try:
        program = library_path().parents[1] / "bin/octavo"
        os.execv(program, ["octavo", *sys.argv[1:]])
    except (OctavoError, OSError) as error:
        sys.exit(f"octavo: {error}")
