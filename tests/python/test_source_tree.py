"""The package as it is used from the source tree: .venv finds it, and importing it says nothing."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "adapters/python"
LIBRARY = pathlib.Path(os.environ.get("OCTAVO_LIBRARY", ROOT / "build/lib/liboctavo.so"))


def test_the_environment_that_bootstrap_makes_has_the_package(tmp_path: pathlib.Path) -> None:
    """Without PYTHONPATH and without OCTAVO_LIBRARY, in a folder with a space."""
    tree, programs = tmp_path / "a tree", tmp_path / "programs"
    (tree / "scripts").mkdir(parents=True)
    (tree / "build/lib").mkdir(parents=True)
    programs.mkdir()
    shutil.copy(ROOT / "scripts/bootstrap", tree / "scripts")
    shutil.copytree(PACKAGE, tree / "adapters/python")
    (tree / "build/lib/liboctavo.so").symlink_to(LIBRARY.resolve())
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tree / ".venv"], check=True)
    # The requirements count as installed, and there is no dpkg-query: nothing is downloaded.
    requirements = (ROOT / "requirements-build.txt").read_text()
    for name in ("requirements-build.txt", ".venv/.bootstrap-build"):
        (tree / name).write_text(requirements)
    for name in ("bash", "dirname", "cmp", "cat", "rm", "python3"):
        (programs / name).symlink_to(shutil.which(name) or name)
    for name in ("g++", "cmake", "ninja", "ccache"):
        (programs / name).symlink_to("/bin/true")
    for _ in range(2):
        subprocess.run(
            ["bash", tree / "scripts/bootstrap"], check=True, env={"PATH": str(programs)}, capture_output=True
        )
    python = tree / ".venv/bin/python"
    said = subprocess.run(
        [
            python,
            "-c",
            "import octavo; from octavo import _abi; print(octavo.__version__, _abi.library_path())",
        ],
        check=True,
        env={"PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert said.stdout.split(" ", 1)[1].strip() == str(tree / "build/lib/liboctavo.so")


@pytest.mark.parametrize(
    "use", ["import octavo", "import torch, octavo.optim, octavo.nn, octavo.fp8; octavo.plan"]
)
def test_importing_it_without_numpy_warns_of_nothing(use: str) -> None:
    """torch warns of a missing numpy when it is imported itself. The package adds nothing to that."""
    program = f"""
import warnings
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = staticmethod(
    lambda name, *given: None if name.partition(".")[0] == "numpy" else find(name, *given)
)
if "torch" in {use!r}:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
warnings.simplefilter("error")
{use}
try:
    import numpy
except ModuleNotFoundError:
    print("no numpy")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        env={**os.environ, "PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("no numpy\n", "")
