"""The library with the two examples in it: ctest passes the path, pytest alone uses build/toy."""

import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python"))  # octavo_abi
sys.path.insert(0, str(ROOT / "adapters/python"))  # the package of this tree, whichever is installed
os.environ.setdefault("OCTAVO_LIBRARY", str(ROOT / "build/toy/lib/liboctavo.so"))
