"""Checks of checkpoints of sharded parameters: torch.distributed.checkpoint with the same and with another
number of ranks, whole dicts, lazy initialisation.

Three ranks save what two ranks load, and two what one loads (test_distributed.py).
"""

from __future__ import annotations

import itertools
import pathlib
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from distributed_cases import (
    BLOCKS,
    ENCODING_ERROR,
    FIRST_STEP,
    FP_SLACK,
    SHAPES,
    Run,
    aligned,
    element_scales,
    local,
    make,
    moments,
    quantised,
    rows_here,
    same_bits,
)
from distributed_checks import assert_same_state
from distributed_worker import Rank
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.tensor import DTensor

SAVED_STEPS = 4
FULL = StateDictOptions(full_state_dict=True)


def copy_parameters(target: Run, source: Run) -> None:
    """The rows that are here; both are sharded alike, or the source is whole."""
    with torch.no_grad():
        for name in SHAPES:
            theirs = source.param(name)
            here = local(theirs) if isinstance(theirs, DTensor) else rows_here(theirs, target.param(name))
            local(target.param(name)).copy_(here)
    target.steps = source.steps


def assert_equal_runs(a: Run, b: Run) -> None:
    """Two runs that are split alike have the same parameters and states, in bits."""
    for name in SHAPES:
        assert same_bits(local(a.param(name)), local(b.param(name))), name
        assert a.state(name).keys() == b.state(name).keys(), name
        for key, value in a.state(name).items():
            assert same_bits(value, b.state(name)[key]), f"{name}: {key}"


# --- The same number of ranks -----------------------------------------------------------------------------


def _through_files(ours: Run, other: Run, folder: pathlib.Path, options: StateDictOptions) -> None:
    dcp.save(
        {"optim": get_optimizer_state_dict(ours.module, ours.optimizer, options=options)},
        checkpoint_id=folder,
    )
    loaded = {"optim": get_optimizer_state_dict(other.module, other.optimizer, options=options)}
    dcp.load(loaded, checkpoint_id=folder)
    set_optimizer_state_dict(other.module, other.optimizer, loaded["optim"], options=options)


def _through_whole_dicts(ours: Run, other: Run, folder: pathlib.Path, options: StateDictOptions) -> None:
    saved = get_optimizer_state_dict(ours.module, ours.optimizer, options=FULL)
    set_optimizer_state_dict(other.module, other.optimizer, saved, options=FULL)


def _through_rank_0(ours: Run, other: Run, folder: pathlib.Path, options: StateDictOptions) -> None:
    offload = StateDictOptions(full_state_dict=True, cpu_offload=True)
    saved = get_optimizer_state_dict(ours.module, ours.optimizer, options=offload)
    assert bool(saved) == (dist.get_rank() == 0)
    spread = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    set_optimizer_state_dict(other.module, other.optimizer, saved, options=spread)


_NESTED, _FLAT = StateDictOptions(), StateDictOptions(flatten_optimizer_state_dict=True)
_KINDS: tuple[tuple[str, str | int], ...] = (
    ("8bit", "stochastic"),
    ("4bit", 24),
    ("fp8", 32),
    ("bf16", "stochastic"),
    ("fp32", 24),
)
_WAYS: tuple[tuple[Any, StateDictOptions, int], ...] = (  # the last: how many of the kinds
    (_through_files, _NESTED, 5),
    (_through_files, _FLAT, 3),
    (_through_whole_dicts, FULL, 3),
    (_through_rank_0, FULL, 3),
)


def same_ranks_same_bits(here: Rank) -> None:
    """States survive in bits, with step counts of their own, and so do the steps that follow."""
    cases = [(*kind, way, options) for way, options, count in _WAYS for kind in _KINDS[:count]]
    for state, master, way, options in cases:
        ours, other = make(here.mesh, state, master), make(here.mesh, state, master)
        ours.advance(SAVED_STEPS)
        copy_parameters(other, ours)
        folder = here.folder / f"same-{here.world}-{state}-{options.flatten_optimizer_state_dict}"
        way(ours, other, folder, options)
        assert_equal_runs(ours, other)
        assert [int(other.state(n)["step"]) for n in ("rows512", "late")] == [4, 2]
        ours.advance(2)
        other.advance(2)
        assert_equal_runs(ours, other)


def replicas_by_torch(here: Rank) -> None:
    """What DDP has on every rank goes through torch.distributed.checkpoint in the form of one process."""
    for state, options in itertools.product(("8bit", "4bit"), (_NESTED, _FLAT)):
        ours, other = make(None, state), make(None, state)
        ours.advance(SAVED_STEPS)
        copy_parameters(other, ours)
        flat = options.flatten_optimizer_state_dict
        _through_files(ours, other, here.folder / f"replicas-{state}-{flat}", options)
        assert_equal_runs(ours, other)


def lazy_initialisation_changes_no_parameter(here: Rank) -> None:
    """torch.distributed.checkpoint makes states by a step with zero gradients and lr 0."""
    for state, master in itertools.product(("8bit", "4bit", "fp8", "bf16"), ("stochastic", 24)):
        ours = make(here.mesh, state, master, skip_nonfinite=state == "4bit")
        with torch.no_grad():
            for param in ours.module.parameters():
                local(param).view(-1)[:3] = torch.tensor([-0.0, 0.0, 1e-39])[: local(param).numel()]
        before = [local(p).detach().clone() for p in ours.module.parameters()]
        saved = get_optimizer_state_dict(ours.module, ours.optimizer)
        assert all(same_bits(local(p), b) for p, b in zip(ours.module.parameters(), before, strict=True))
        assert ours.optimizer.param_groups[0]["lr"] == 1e-2
        assert all(p.grad is None for p in ours.module.parameters())
        assert set(saved["state"]) == set(SHAPES)


# --- Another number of ranks ------------------------------------------------------------------------------


def save_for_fewer_ranks(here: Rank) -> None:
    for state in ENCODING_ERROR:
        ours = make(here.mesh, state)
        ours.advance(SAVED_STEPS)
        save(ours, here.folder / f"from-{here.world}-{state}")


def save(run: Run, folder: pathlib.Path) -> None:
    """By rows under both kinds of names, as one file of whole tensors, and the decoded moments that a load
    must give back.
    """
    parts = {
        "model": get_model_state_dict(run.module),
        "optim": get_optimizer_state_dict(run.module, run.optimizer),
        "flat": get_optimizer_state_dict(run.module, run.optimizer, options=_FLAT),
    }
    dcp.save(parts, checkpoint_id=folder)
    offload = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = {
        "model": get_model_state_dict(run.module, options=offload),
        "optim": get_optimizer_state_dict(run.module, run.optimizer, options=offload),
    }
    saved = run.optimizer.portable_state_dict()["state"]
    keys = ("exp_avg", "exp_avg_sq")
    decoded = {name: {k: saved[i][k].full_tensor() for k in keys} for i, name in enumerate(SHAPES)}
    if dist.get_rank() == 0:
        torch.save(whole, folder / "whole.pt")
        torch.save(decoded, folder / "moments.pt")


def load(run: Run, folder: pathlib.Path, part: str = "optim") -> None:
    """By rows; `part` is "optim" or "flat"."""
    options = _FLAT if part == "flat" else _NESTED
    parts = {
        "model": get_model_state_dict(run.module),
        part: get_optimizer_state_dict(run.module, run.optimizer, options=options),
    }
    dcp.load(parts, checkpoint_id=folder)
    set_model_state_dict(run.module, parts["model"])
    set_optimizer_state_dict(run.module, run.optimizer, parts[part], options=options)
    run.steps = SAVED_STEPS


def assert_carried(
    run: Run, state: str, expected: dict[str, dict[str, Tensor]], old: int, new: int
) -> set[str]:
    """Moments are unchanged where the blocks can be as before, and are encoded once more elsewhere. Returns
    the names whose rows here were encoded.
    """
    encoded = set()
    for name, values in moments(run).items():
        fits = _same_phases(name, state, old, new, run.param(name))
        for key, value in values.items():
            before = rows_here(expected[name][key], run.param(name))
            if fits:
                assert same_bits(value, before), f"{name}: {key}"
                continue
            encoded.add(name)
            bound = (ENCODING_ERROR[state][key] + FP_SLACK) * element_scales(before, BLOCKS[state])
            assert bool(((value.double() - before.double()).abs() <= bound).all()), f"{name}: {key}"
        assert int(run.state(name)["step"]) == SAVED_STEPS + 1 - FIRST_STEP.get(name, 1)
    return encoded


def _same_phases(name: str, state: str, old: int, new: int, param: Tensor) -> bool:
    """Whether every row here begins as far into a block of this shard as it did into one of its old shard."""
    if not quantised(name):
        return True
    rows, row, block = SHAPES[name][0], torch.Size(SHAPES[name][1:]).numel(), BLOCKS[state]
    here = rows_here(torch.arange(rows), param)
    phases = [here % -(-rows // world) * row % block for world in (old, new)]
    return bool((phases[0] == phases[1]).all())


def two_ranks_continue_three(here: Rank) -> None:
    for state, part in itertools.product(ENCODING_ERROR, ("optim", "flat")):
        saved = here.folder / f"from-3-{state}"
        ours, whole = make(here.mesh, state), make(None, state)
        load(ours, saved, part)
        whole.advance(SAVED_STEPS)
        expected = torch.load(saved / "moments.pt")
        encoded = assert_carried(ours, state, expected, old=3, new=2)
        assert encoded >= {"odd", "bias"}
        assert not encoded & {"rows512", "rows640_even", "late"}
        if state == "8bit":
            assert "rows640" in encoded
            assert ("rows896" in encoded) == (here.rank == 1)
        if part == "optim":
            save(ours, here.folder / f"from-2-{state}")
        for _ in range(2):
            for name in SHAPES:
                if aligned(name, state, 3) and aligned(name, state, 2):
                    assert_same_state(name, ours, whole)
            ours.advance()
            whole.advance()


def whole_dicts_into_shards(here: Rank) -> None:
    """A state dict of whole parameters in one process: given to every rank, and by set_optimizer_state_dict,
    which cuts flat scales and packed codes where no row ends.
    """
    for state, by_torch in itertools.product(ENCODING_ERROR, (False, True)):
        ours, whole = make(here.mesh, state), make(None, state)
        whole.advance(SAVED_STEPS)
        copy_parameters(ours, whole)
        if by_torch:
            saved = get_optimizer_state_dict(whole.module, whole.optimizer, options=FULL)
            set_optimizer_state_dict(ours.module, ours.optimizer, saved, options=FULL)
        else:
            ours.optimizer.load_state_dict(whole.optimizer.state_dict())
        assert_carried(ours, state, moments(whole), old=1, new=here.world)
        for _ in range(2):
            for name in SHAPES:
                if aligned(name, state, here.world):
                    assert_same_state(name, ours, whole)
            ours.advance()
            whole.advance()


def torch_states_of_shards(here: Rank) -> None:
    """torch.optim.AdamW's states of the same shards load in bits, and ours into it."""
    ours, other = (
        make(here.mesh, "fp32", "native", torch.float32),
        make(here.mesh, "fp32", "native", torch.float32),
    )
    ours.advance(SAVED_STEPS)
    theirs: Any = torch.optim.AdamW(ours.module.parameters(), lr=1e-2, foreach=False)
    theirs.load_state_dict(ours.optimizer.portable_state_dict())
    copy_parameters(other, ours)
    other.optimizer.load_state_dict(theirs.state_dict())
    assert_equal_runs(ours, other)


def bad_rows_are_errors(here: Rank) -> None:
    ours = make(here.mesh, "8bit")
    ours.advance(1)
    before = {key: value.clone() for key, value in ours.state("rows640").items()}

    def broken(change: Any) -> dict[str, Any]:
        saved = ours.optimizer.state_dict()
        entry = saved["state"][1]
        saved["state"][1] = {k: v.clone() if isinstance(v, Tensor) else v for k, v in entry.items()}
        change(local(saved["state"][1]["exp_avg_scale"]))
        return saved

    def tag(value: float) -> Any:
        return lambda scales: scales[:, -1].fill_(value)

    for change, message in (
        (tag(float("nan")), "parameter 1 of group 0: exp_avg_scale: the last column begins with nan"),
        (tag(2 * 8192 + 20), "says nothing of its rows"),  # a block of 16
        (tag(2 * 8192 + 64), "and scales of shape .* for rows of shape .* in 8bit"),
        (lambda scales: scales.neg_(), "exp_avg_scale has negative entries: the state is corrupt"),
    ):
        with pytest.raises(ValueError, match=message):
            ours.optimizer.load_state_dict(broken(change))
    assert all(same_bits(value, ours.state("rows640")[key]) for key, value in before.items())


FOR_WORLD = {
    3: (same_ranks_same_bits, lazy_initialisation_changes_no_parameter, save_for_fewer_ranks),
    2: (
        replicas_by_torch,
        two_ranks_continue_three,
        whole_dicts_into_shards,
        torch_states_of_shards,
        bad_rows_are_errors,
    ),
}
