"""octavo.fp8 in two processes (gloo, on the CPU): distributed_fp8.py holds what is asked."""

from __future__ import annotations

import pathlib

import distributed_fp8
import distributed_worker as worker
import pytest


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder: pathlib.Path = tmp_path_factory.mktemp("fp8")
    return worker.run(2, distributed_fp8.CHECKS, folder)


@pytest.mark.parametrize("check", [check.__name__ for check in distributed_fp8.CHECKS])
def test_two_processes(two: dict[str, str], check: str) -> None:
    assert not two[check], two[check]
