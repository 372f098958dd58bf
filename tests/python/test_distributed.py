"""octavo.optim in several processes (gloo, on the CPU): distributed_checks.py and distributed_checkpoints.py
hold what is asked; here they are started, once per number of processes.
"""

from __future__ import annotations

import atexit
import pathlib
import subprocess
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import distributed_checkpoints as checkpoints
import distributed_checks as checks
import distributed_worker as worker
import pytest
import torch
import torch.distributed as dist
from distributed_cases import ENCODING_ERROR, Run, aligned, make
from octavo import _collectives
from octavo._shards import rows_of
from octavo.fp8 import arenas
from octavo.optim import norms
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore

CHECKS = {world: (*checks.FOR_WORLD[world], *checkpoints.FOR_WORLD[world]) for world in (2, 3)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("distributed")


@pytest.fixture(scope="module")
def three(folder: pathlib.Path) -> dict[str, str]:
    return worker.run(3, CHECKS[3], folder)


@pytest.fixture(scope="module")
def two(folder: pathlib.Path, three: dict[str, str]) -> dict[str, str]:
    return worker.run(2, CHECKS[2], folder)


@pytest.mark.parametrize("check", [c.__name__ for c in CHECKS[3]])
def test_three_processes(three: dict[str, str], check: str) -> None:
    assert not three[check], three[check]


@pytest.mark.parametrize("check", [c.__name__ for c in CHECKS[2]])
def test_two_processes(two: dict[str, str], check: str) -> None:
    assert not two[check], two[check]


# --- What one process makes of the others' checkpoints ----------------------------------------------------


def assert_continues(run: Run, state: str, saved: pathlib.Path, old: int) -> None:
    """Moments as in the file, and from there the steps of a process that never was several."""
    checkpoints.assert_carried(run, state, torch.load(saved / "moments.pt"), old=old, new=1)
    whole = make(None, state)
    whole.advance(checkpoints.SAVED_STEPS)
    same = [name for name in checkpoints.SHAPES if aligned(name, state, 3) and aligned(name, state, old)]
    assert {"rows512", "rows640_even", "late", "small", "tiny"} <= set(same)
    for _ in range(2):
        for name in same:
            checks.assert_same_state(name, run, whole)
        run.advance()
        whole.advance()


@pytest.mark.parametrize("state", ENCODING_ERROR)
def test_one_process_continues_two(two: dict[str, str], folder: pathlib.Path, state: str) -> None:
    """FSDP2 over a mesh of one process, from a checkpoint that had been cut for three and then for two."""
    assert not two["two_ranks_continue_three"]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        run = make(init_device_mesh("cpu", (1,)), state)
        checkpoints.load(run, folder / f"from-2-{state}")
        assert_continues(run, state, folder / f"from-2-{state}", old=2)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("state", ENCODING_ERROR)
@pytest.mark.parametrize("ranks", [3, 2])
def test_unsharded_parameters_load_whole_dicts(
    two: dict[str, str], folder: pathlib.Path, ranks: int, state: str
) -> None:
    """full_state_dict=True on the ranks, a plain torch.load without any process group here."""
    assert not two["two_ranks_continue_three"]
    saved = folder / f"from-{ranks}-{state}"
    whole = torch.load(saved / "whole.pt", weights_only=True)
    for by_torch in (False, True):
        run = make(None, state)
        run.module.load_state_dict(whole["model"])
        if by_torch:
            options = StateDictOptions(full_state_dict=True)
            set_optimizer_state_dict(run.module, run.optimizer, whole["optim"], options=options)
        else:
            run.optimizer.load_state_dict(whole["optim"])
        run.steps = checkpoints.SAVED_STEPS
        assert_continues(run, state, saved, old=ranks)


# --- Which rows a rank has --------------------------------------------------------------------------------


@pytest.fixture(params=range(6))
def rank_of_six(request: pytest.FixtureRequest) -> Iterator[int]:
    """A process group of one process: enough to ask which rank would have which rows."""
    dist.init_process_group("fake", store=FakeStore(), rank=request.param, world_size=6)
    yield request.param
    dist.destroy_process_group()


def test_rows_are_those_that_torch_says(rank_of_six: int) -> None:
    mesh = init_device_mesh("cpu", (2, 3))
    placements: tuple[tuple[Placement, Placement], ...] = (
        (Shard(0), Shard(0)),
        (Replicate(), Shard(0)),
        (Shard(0), Replicate()),
        (Replicate(), Replicate()),
    )
    for placed in placements:
        for shape in ((7, 3), (4,), (1, 5), (13, 2, 2), (12,), (0, 4)):
            size, offset = compute_local_shape_and_global_offset(shape, mesh, placed)
            whole = torch.empty(shape)
            tensor = DTensor.from_local(
                torch.empty(size), mesh, placed, run_check=False, shape=whole.shape, stride=whole.stride()
            )
            rows = rows_of(tensor)
            assert (rows.shape, rows.count) == (shape, size[0])
            assert rows.first == offset[0] or not rows.count


# --- What gloo's threads hold -----------------------------------------------------------------------------


def norm_of_ranks() -> None:
    group = types.SimpleNamespace(_device_types=[torch.device("cpu")])
    norms.reduce_over_group(norms.new_norms(torch.device("cpu")), group)


def largest_of_ranks() -> None:
    arenas._maxima_of_all_ranks([torch.ones(3)])


@pytest.mark.parametrize("collective", [norm_of_ranks, largest_of_ranks])
def test_a_collective_returns_after_its_tensor_was_released(
    collective: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """gloo's thread holds the tensor longer than the caller waits, and needs the GIL to release it. In an
    interpreter that shuts down it does not get it, and the process aborts: a program that exited directly
    after its last step failed in most runs.
    """
    passed: list[weakref.ref[torch.Tensor]] = []

    def all_reduce(tensor: torch.Tensor, **options: Any) -> None:
        passed.append(weakref.ref(tensor))
        threading.Thread(target=lambda held: time.sleep(0.05), args=(tensor,)).start()

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    collective()
    assert passed
    assert [tensor for tensor in passed if tensor() is not None] == []


def test_gloo_gets_the_gil_before_the_interpreter_shuts_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for collectives that are not ours: FSDP2's may end directly before the last step."""
    registered: list[Any] = []
    monkeypatch.setattr(atexit, "register", lambda *call: registered.append(call))
    _collectives.release_at_exit.cache_clear()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        pause = (time.sleep, _collectives._AT_EXIT)
        make(None, "8bit").advance()
        assert pause not in registered
        for _ in range(2):
            make(init_device_mesh("cpu", (1,)), "8bit").advance()
        assert registered.count(pause) == 1
    finally:
        dist.destroy_process_group()
        _collectives.release_at_exit.cache_clear()


def test_the_fsdp2_example_resumes(tmp_path: pathlib.Path) -> None:
    example = pathlib.Path(__file__).resolve().parents[2] / "examples/python/fsdp2.py"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(example), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "after a resume" in done.stdout
