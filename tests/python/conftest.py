"""Where the Python tests find what was built: ctest passes the paths, a plain pytest run uses build/."""

import ctypes
import importlib
import importlib.util
import os
import pathlib
import sys

import ambient
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "adapters/python"))  # the package of this tree, whatever is installed
ambient.bind_main_thread()
if importlib.util.find_spec("torch") is not None:  # before any test's module makes a tensor
    ambient.set_defaults()

# flashoptim's kernels are Triton's: without a GPU its interpreter runs them. Triton reads this at import.
if importlib.util.find_spec("torch") is not None and not importlib.import_module("torch").cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    """The shared library, through its C ABI."""
    return ctypes.CDLL(os.environ.get("OCTAVO_LIBRARY", str(ROOT / "build/lib/liboctavo.so")))


@pytest.fixture(scope="session")
def command() -> str:
    """The path of the octavo command."""
    return os.environ.get("OCTAVO_COMMAND", str(ROOT / "build/bin/octavo"))


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    """Where a test's tensors lie; without a GPU the second half skips."""
    if request.param == "cuda" and not importlib.import_module("torch").cuda.is_available():
        pytest.skip("no CUDA device")
    return str(request.param)
