"""Fixtures of the tests that run NVIDIA NeMo: `make peers` runs them, see ../run_nemo_tests.py.

    python tests/peers/run_nemo_tests.py [-k EXPRESSION]

Without NeMo every test is skipped by name. The runner sets OCTAVO_BUILD to the build folder, whose command
and whose program `speech_tensors` are compared with NeMo.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest

sys.dont_write_bytecode = True


def _missing() -> str | None:
    """Why the tests cannot run here."""
    try:
        importlib.metadata.version("nemo-toolkit")
    except importlib.metadata.PackageNotFoundError:
        return "NeMo is not installed for this Python: `make peers` installs it and runs this test"
    if "OCTAVO_BUILD" not in os.environ:
        return "OCTAVO_BUILD is not set: start tests/peers/run_nemo_tests.py, which sets it"
    return None


MISSING = _missing()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if MISSING:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture(scope="session", autouse=True)
def quiet() -> None:
    """One thread, and NeMo's log without the lines that every restore prints."""
    import logging

    import torch
    from nemo.utils import logging as nemo_log

    torch.set_num_threads(1)
    nemo_log.setLevel(logging.ERROR)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings, manifests and a tokenizer (tones.py), and what the tests write."""
    import tones

    path = tmp_path_factory.mktemp("nemo")
    tones.write(path)
    return path


@pytest.fixture
def no_cuda_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """NeMo's reference of the TDT loss moves its tensors to a GPU; here they stay on the CPU."""
    import torch

    monkeypatch.setattr(torch.Tensor, "cuda", lambda self, *_, **__: self)
