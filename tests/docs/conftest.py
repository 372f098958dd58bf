"""Where the tests of the documents find what was built: ctest passes the path, pytest alone uses build/."""

import os
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "adapters/python"))  # the package of this tree, whatever is installed
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
os.environ.setdefault("OCTAVO_LIBRARY", str(ROOT / "build/lib/liboctavo.so"))


@pytest.fixture(scope="session")
def build() -> pathlib.Path:
    """The build folder."""
    return pathlib.Path(os.environ["OCTAVO_LIBRARY"]).resolve().parents[1]
