"""Octavo and NVIDIA NeMo compared: numbers, transcripts, losses, exported archives and optimizers
(tests/peers/nemo).

    make peers                                                            # among the others
    python tests/peers/run_nemo_tests.py --nemo-python nemo/bin/python    # an environment of your own
    python tests/peers/run_nemo_tests.py -k exports

NeMo gets a virtual environment of its own, build/peers/nemo-venv, from requirements-nemo.txt, because it
needs other versions of Lightning and transformers than .venv has. It is made once. The tests make NeMo's
models themselves, with random weights. Nothing runs on a GPU. A skipped test is a failure here.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys

from suites import FOLDER, HERE

ROOT = HERE.parents[1]
REQUIREMENTS = ROOT / "requirements-nemo.txt"
VENV = FOLDER / "nemo-venv"
OLDEST, NEWEST = (3, 11), (3, 13)  # pandas and NumPy need 3.11; newer ones than 3.13 were not looked at
PROGRAMS = ("bin/octavo", "lib/liboctavo.so", "tests/speech_tensors")


def torch_version() -> str:
    """The requirement of LibTorch and of the Python tests."""
    found = re.search(r"^torch==\S+$", (ROOT / "requirements-build.txt").read_text(), re.MULTILINE)
    assert found, "requirements-build.txt names torch"
    return found[0]


def make_venv() -> pathlib.Path:
    """The Python of build/peers/nemo-venv, which is made where it is missing or has other versions."""
    python, made = VENV / "bin/python", VENV / "requirements.txt"
    wanted = f"{torch_version()}\n{REQUIREMENTS.read_text()}"
    if made.exists() and made.read_text() == wanted:
        return python
    version = sys.version_info[:2]
    if not OLDEST <= version <= NEWEST:
        raise SystemExit(
            f"{sys.executable} is Python {version[0]}.{version[1]}, but {REQUIREMENTS.name} needs "
            f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}: start this with such a Python, or name one "
            "that has NeMo with --nemo-python or OCTAVO_NEMO_PYTHON"
        )
    print(f"installing NeMo into {VENV}, which takes about 2 GB; pip will miss cuda-bindings", flush=True)
    pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(VENV)],
        [*pip, "--no-deps", "-r", str(REQUIREMENTS)],
        [*pip, torch_version()],
    ):
        if subprocess.run(command, check=False).returncode != 0:
            raise SystemExit(
                f"cannot install NeMo: {' '.join(command)} failed. Without a network, name a Python that has "
                f"the packages of {REQUIREMENTS.name} with --nemo-python or OCTAVO_NEMO_PYTHON"
            )
    made.write_text(wanted)
    return python


def check(python: str) -> None:
    """Ends where a named Python does not exist or lacks what the tests import."""
    if shutil.which(python) is None:
        raise SystemExit(f"{python} is not a program: expected a Python that has NeMo")
    code = "from importlib.util import find_spec; print(*[m for m in {} if not find_spec(m)])"
    modules = ("nemo", "pytest", "soxr")
    done = subprocess.run([python, "-c", code.format(modules)], capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stdout.strip():
        missing = done.stdout.strip() or done.stderr.strip().rsplit("\n", 1)[-1]
        raise SystemExit(f"{python} lacks packages of {REQUIREMENTS.name}: {missing}")


def environment(build: pathlib.Path) -> dict[str, str]:
    offline = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "WANDB_MODE": "offline"}
    return {
        **os.environ,
        **offline,
        "PYTHONPATH": str(ROOT / "adapters/python"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONWARNINGS": "ignore",
        "OMP_NUM_THREADS": "1",
        "OCTAVO_BUILD": str(build),
        "OCTAVO_LIBRARY": str(build / "lib/liboctavo.so"),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Compares Octavo with NVIDIA NeMo, on the CPU.")
    parser.add_argument(
        "--nemo-python",
        default=os.environ.get("OCTAVO_NEMO_PYTHON"),
        metavar="PYTHON",
        help="a Python that has NeMo; otherwise build/peers/nemo-venv is made (also OCTAVO_NEMO_PYTHON)",
    )
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build", help="the build folder")
    parser.add_argument("-k", metavar="EXPRESSION", help="only these tests, as pytest's -k")
    options = parser.parse_args()
    build = options.build.resolve()
    for name in PROGRAMS:
        if not (build / name).exists():
            targets = "octavo octavo_cli speech_tensors"
            raise SystemExit(
                f"{build / name} does not exist: make peers, or cmake --build {build} --target {targets}"
            )
    python = options.nemo_python or str(make_venv())
    if os.sep in python:
        python = os.path.abspath(python)  # pytest runs in another directory
    check(python)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=5", str(HERE / "nemo")]
    if options.k:
        command += ["-k", options.k]
    done = subprocess.run(
        command, env=environment(build), cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    print(done.stdout, end="")
    if re.search(r"\d+ skipped", done.stdout):
        print("tests were skipped, expected all to run")
        return 1
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
