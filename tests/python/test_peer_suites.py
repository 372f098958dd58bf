"""What the peers' own suites rest on (tests/peers): the other names of our states, and the tables of their
results. The suites themselves are `make peers`.
"""

from __future__ import annotations

import importlib
import pathlib
import subprocess
import sys
from typing import Any

import peers
import pytest
import torch
from octavo import optim
from octavo.optim.states.tracked_state import Entry

SUITES = pathlib.Path(__file__).resolve().parents[1] / "peers"


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """bitsandbytes with our classes in place of its own, for one test."""
    peers.need("bitsandbytes")
    module = importlib.import_module("bitsandbytes")
    for name in optim.__all__:
        if hasattr(module.optim, name):  # so that they come back
            monkeypatch.setattr(module.optim, name, getattr(module.optim, name))
    monkeypatch.setattr(Entry, "__missing__", None, raising=False)
    monkeypatch.syspath_prepend(str(SUITES))
    importlib.import_module("replacements").replace_bitsandbytes()
    return module


def test_states_are_read_by_bitsandbytes_keys(theirs: Any) -> None:
    param = torch.nn.Parameter(torch.randn(64, 128))
    param.grad = torch.randn(64, 128)
    optimizer = theirs.optim.AdamW8bit([param])
    assert isinstance(optimizer, optim.Optimizer)
    optimizer.step()
    entry, portable = optimizer.state[param], optimizer.portable_state_dict()["state"][0]
    for slot, name in ((1, "exp_avg"), (2, "exp_avg_sq")):
        values = theirs.functional.dequantize_blockwise(
            A=entry[f"state{slot}"], absmax=entry[f"absmax{slot}"], code=entry[f"qmap{slot}"], blocksize=256
        )
        assert torch.equal(values, portable[name])
    with pytest.raises(KeyError):
        entry["state3"]


def test_the_tables_are_those_of_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/compatibility.md says what `make peers` gave, row by row."""
    monkeypatch.syspath_prepend(str(SUITES))
    results = importlib.import_module("results")
    page = results.PAGE.read_text()
    assert results.with_tables(page, results.load()) == page


@pytest.fixture
def nemo_runner(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> Any:
    """run_nemo_tests without an environment for NeMo."""
    monkeypatch.syspath_prepend(str(SUITES))
    module = importlib.import_module("run_nemo_tests")
    monkeypatch.setattr(module, "VENV", tmp_path / "nemo-venv")
    return module


def test_nemo_is_not_installed_for_a_python_without_wheels(
    nemo_runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nemo_runner.sys, "version_info", (3, 99, 0))
    with pytest.raises(SystemExit, match=r"is Python 3.99, but requirements-nemo.txt needs 3.11 to 3.13"):
        nemo_runner.make_venv()


def test_an_installation_of_nemo_that_fails_is_an_error(
    nemo_runner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nemo_runner.sys, "version_info", (3, 11, 0))
    ran: list[list[str]] = []

    def fails(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        ran.append(command)
        return subprocess.CompletedProcess(command, len(ran) == 2)

    monkeypatch.setattr(nemo_runner.subprocess, "run", fails)
    with pytest.raises(SystemExit, match=r"cannot install NeMo: .* Without a network, name a Python"):
        nemo_runner.make_venv()
    assert len(ran) == 2
    assert not (nemo_runner.VENV / "requirements.txt").exists()


def test_a_python_without_nemo_is_named(nemo_runner: Any) -> None:
    with pytest.raises(SystemExit, match=r"/nowhere/python is not a program"):
        nemo_runner.check("/nowhere/python")
    with pytest.raises(SystemExit, match=r"lacks packages of requirements-nemo.txt: nemo "):
        nemo_runner.check(sys.executable)
