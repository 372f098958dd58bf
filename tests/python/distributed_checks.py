"""Checks of training in several processes: DDP, FSDP2, HSDP, offload, norms over ranks, errors.

Each process also runs the optimizer on whole parameters and compares its own rows. distributed_worker.py
runs them.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from distributed_cases import (
    BLOCKS,
    ENCODING_ERROR,
    FIRST_STEP,
    SHAPES,
    Drift,
    Parameters,
    Run,
    aligned,
    as_bytes,
    as_split,
    gradient,
    local,
    make,
    moments,
    quantised,
    rows_here,
    same_bits,
)
from distributed_worker import Rank
from octavo import optim
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import SequenceParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

Moments = dict[str, dict[str, Tensor]]  # decoded, by parameter and key


def assert_same_everywhere(tensors: Iterable[Tensor], world: int) -> None:
    """Every rank has the same bytes."""
    mine = torch.cat([as_bytes(t) for t in tensors])
    all_ranks = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(all_ranks, mine)
    assert all(torch.equal(mine, other) for other in all_ranks)


def assert_same_state(name: str, ours: Run, whole: Run) -> None:
    """The parameter and everything in optimizer.state, in bits, where shards and whole have equal blocks."""
    assert same_bits(local(ours.param(name)), rows_here(whole.param(name), ours.param(name))), name
    mine, its = ours.state(name), whole.state(name)
    assert mine.keys() == its.keys()
    offset = int(rows_here(torch.arange(SHAPES[name][0]), ours.param(name))[:1].sum())  # of the first row
    offset *= torch.Size(SHAPES[name][1:]).numel()
    count = local(ours.param(name)).numel()
    for key, value in mine.items():
        expected = its[key]
        if key.endswith("_scale"):
            block = BLOCKS[ours.optimizer.param_groups[0]["state"]]
            expected = expected[offset // block : -(-(offset + count) // block)] if count else expected[:0]
        elif expected.dim() == 1 and expected.shape != torch.Size(SHAPES[name]):  # packed nibbles
            expected = torch.stack([expected >> 4, expected & 15], dim=1).flatten()[offset : offset + count]
            value = torch.stack([value >> 4, value & 15], dim=1).flatten()[:count]
        elif "step" not in key:
            expected = rows_here(expected, ours.param(name))
        assert same_bits(value, expected), f"{name}: {key}"


# --- DDP ------------------------------------------------------------------------------------------------


def ddp_replicas_equal_one_process(here: Rank) -> None:
    """Each rank has other data. Replicas stay equal in bits, and equal to one process that is given the
    averaged gradients.
    """
    for state in ("8bit", "4bit"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 96)).bfloat16()
        alone = copy.deepcopy(model)
        replicas = DistributedDataParallel(model)
        options: Any = {"lr": 1e-2, "state": state, "master": "stochastic", "clip_grad_norm": 0.1}
        optimizer = optim.AdamW(replicas.parameters(), **options)
        reference = optim.AdamW(alone.parameters(), **options)
        torch.manual_seed(100 + here.rank)
        seen = []
        for _ in range(4):
            data = torch.randn(8, 96).bfloat16()
            seen.append(data)
            replicas(data).float().square().mean().backward()
            for param, its in zip(model.parameters(), alone.parameters(), strict=True):
                its.grad = param.grad.clone()  # type: ignore[union-attr]
            optimizer.step()
            reference.step()
            optimizer.zero_grad()
        assert optimizer.state[model[0].weight]["exp_avg"].dtype == torch.uint8
        assert all(map(same_bits, model.parameters(), alone.parameters()))
        states = [t for p in model.parameters() for t in optimizer.state[p].values()]
        assert_same_everywhere([*model.parameters(), *states], here.world)
        sums = [torch.zeros((), dtype=torch.float64) for _ in range(here.world)]
        dist.all_gather(sums, torch.stack(seen).double().sum())
        assert len({float(s) for s in sums}) == here.world  # the data were not the same


def ddp_refuses_gradient_release(here: Rank) -> None:
    """DDP averages after the hooks that release gradients: an error instead of replicas that differ."""
    given: tuple[dict[str, Any], ...] = ({}, {"static_graph": True}, {"gradient_as_bucket_view": True})
    for wrap_first, options in itertools.product((True, False), given):
        torch.manual_seed(0)
        model = nn.Linear(64, 64)
        before = model.weight.detach().clone()
        replicas = DistributedDataParallel(model, **options) if wrap_first else None
        optimizer = optim.AdamW(model.named_parameters(), gradient_release=True)
        replicas = replicas or DistributedDataParallel(model, **options)
        replicas(torch.randn(4, 64)).square().mean().backward()
        with pytest.raises(
            RuntimeError, match=r"'weight': .*before DistributedDataParallel averages its grad"
        ):
            optimizer.step()
        assert torch.equal(model.weight, before)
        assert not optimizer.state


def release_without_averaging_works_beside_other_ranks(here: Rank) -> None:
    """Each rank has a model of its own: the first gradients wait for step(), the next ones are released."""
    ours, whole = nn.Linear(64, 64), nn.Linear(64, 64)
    whole.load_state_dict(ours.state_dict())
    optimizer = optim.AdamW8bit(ours.parameters(), gradient_release=True)
    reference = optim.AdamW8bit(whole.parameters())
    for turn in range(3):
        data = torch.randn(4, 64)
        for model in (ours, whole):
            model(data).square().mean().backward()
        assert (ours.weight.grad is None) == (turn > 0)
        if turn == 0:
            optimizer.zero_grad()  # as a loop may do it that knows the step is taken
        optimizer.step()
        reference.step()
        reference.zero_grad()
        assert ours.weight.grad is None
        assert same_bits(ours.weight, whole.weight)


# --- FSDP2 ----------------------------------------------------------------------------------------------

_STATES: tuple[tuple[str, str | int, torch.dtype], ...] = (
    ("8bit", "stochastic", torch.bfloat16),
    ("8bit", "native", torch.float32),
    ("4bit", "stochastic", torch.bfloat16),
    ("4bit", "native", torch.float32),
    ("fp8", 24, torch.bfloat16),
    ("bf16", "stochastic", torch.bfloat16),
    ("fp32", "stochastic", torch.bfloat16),
    ("fp32", 32, torch.bfloat16),
)


def shards_equal_one_process(here: Rank) -> None:
    """Bits are equal where shards begin at a block of the whole. Elsewhere the first step is equal in bits
    (nothing has been encoded before it, so the noise is the same) and later ones are within Drift's bound.
    """
    for state, master, dtype in _STATES:
        ours, whole = make(here.mesh, state, master, dtype), make(None, state, master, dtype)
        unaligned = {name for name in SHAPES if not aligned(name, state, here.world)}
        if state in BLOCKS:
            assert unaligned >= {"odd", "bias"}
            assert ("rows640" in unaligned) == (state != "4bit")
            assert not unaligned & {"rows512", "rows640_even", "late", "small", "tiny"}
        else:
            assert not unaligned
        bounded = unaligned if state in ENCODING_ERROR else set()
        drifts = {name: Drift(state, local(ours.param(name)).shape) for name in bounded}
        after: Moments = {}
        for step in range(1, 5):
            ours.advance()
            whole.advance()
            before, after = after, moments(whole)
            mine = moments(ours) if drifts else {}
            for name in SHAPES:
                if step < FIRST_STEP.get(name, 1):
                    assert name not in after
                elif name not in unaligned:
                    assert_same_state(name, ours, whole)
                elif step == 1:
                    assert same_bits(local(ours.param(name)), rows_here(whole.param(name), ours.param(name)))
                if name in drifts and local(ours.param(name)).numel():
                    _assert_within(drifts[name], name, step, ours, whole, before, after, mine)
        for name in SHAPES:
            dtype_of_codes = torch.float32 if state == "fp32" or not quantised(name) else None
            if state == "bf16":
                dtype_of_codes = torch.bfloat16
            assert dtype_of_codes in (None, ours.state(name)["exp_avg"].dtype), name
            assert ("exp_avg_scale" in ours.state(name)) == (state in BLOCKS and quantised(name)), name
        assert local(ours.param("bias")).numel() < 4096  # quantised all the same: the whole decides


def _assert_within(
    drift: Drift, name: str, step: int, ours: Run, whole: Run, before: Moments, after: Moments, mine: Moments
) -> None:
    """`before` and `after` are moments of the whole, `mine` those of the shard after the step."""
    param = ours.param(name)
    here, there = local(param).detach(), rows_here(whole.param(name).detach(), param)
    grad = gradient(name, step).to(param.dtype)  # type: ignore[union-attr]
    zeros = {key: torch.zeros(SHAPES[name]) for key in drift.moment}
    known = {key: rows_here(value, param) for key, value in before.get(name, zeros).items()}
    drift.update(step, rows_here(grad, param), known, there, here)
    differences = {"the parameter": ((here.double() - there.double()).abs(), drift.param)}
    for key in drift.moment:
        spread = [run.state(name)[key + "_scale"].repeat_interleave(drift.block) for run in (whole, ours)]
        its_scales = rows_here(spread[0][: whole.param(name).numel()].view(SHAPES[name]), param)
        drift.encode(key, its_scales, spread[1][: here.numel()].view(here.shape))
        difference = mine[name][key].double() - rows_here(after[name][key], param).double()
        differences[key] = (difference.abs(), drift.moment[key])
    for what, (difference, bound) in differences.items():
        worst = float((difference / bound).max())
        assert worst <= 1.0, f"{name}, step {step}: {what} is {worst} bounds off"


def _network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(256, 34), nn.ReLU(), nn.Linear(34, 256), nn.Linear(256, 17)).bfloat16()


def training_with_fsdp_equals_one_process(here: Rank) -> None:
    """Forward and backward passes of FSDP2, also with shards offloaded to the CPU and with gradient release.
    All ranks have the same data, and the mean of two equal gradients is exact.
    """
    assert here.world == 2
    for state, offload, release in itertools.product(("8bit", "4bit"), (False, True), (False, True)):
        model, alone = _network(), _network()
        policy = {"offload_policy": CPUOffloadPolicy(pin_memory=False)} if offload else {}
        for layer in (*(m for m in model if isinstance(m, nn.Linear)), model):
            fully_shard(layer, mesh=here.mesh, **policy)
        # A rank's 17 rows of 256 are whole blocks; its 128 rows of 34 are so with blocks of 32.
        groups = [
            [{"params": [m[0].weight, *m[3].parameters()]}, {"params": [m[2].weight], "block_size": 32}]
            for m in (model, alone)
        ]
        options: Any = {"lr": 1e-2, "state": state, "master": "stochastic", "gradient_release": release}
        optimizer, reference = optim.AdamW(groups[0], **options), optim.AdamW(groups[1], **options)
        torch.manual_seed(5)
        for _ in range(3):
            data = torch.randn(8, 256).bfloat16()
            model(data).float().square().mean().backward()
            alone(data).float().square().mean().backward()
            if release:
                assert all(p.grad is None for g in groups[0] for p in g["params"])
            optimizer.step()
            reference.step()
            model.zero_grad()
            alone.zero_grad()
        assert optimizer.state[model[0].weight]["exp_avg"].dtype == torch.uint8
        for param, its in zip(model.parameters(), alone.parameters(), strict=True):
            assert same_bits(param.full_tensor(), its)


def offload_with_fsdp_equals_without(here: Rank) -> None:
    """States of shards in host memory, also of an attached optimizer; files have the same."""

    def run(**options: Any) -> list[Tensor]:
        model = _network()
        for layer in (*(m for m in model if isinstance(m, nn.Linear)), model):
            fully_shard(layer, mesh=here.mesh)
        release = options.get("gradient_release", False)
        clip = None if release else 0.1
        optimizer = optim.AdamW8bit(model.parameters(), lr=1e-2, clip_grad_norm=clip, **options)
        optimizer.attach(model)
        torch.manual_seed(5 + here.rank)
        for _ in range(3):
            model(torch.randn(8, 256).bfloat16()).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            optimizer.load_state_dict(optimizer.state_dict())
        optimizer.wait()
        states = [t for _, state in sorted(optimizer.state_dict()["state"].items()) for t in state.values()]
        return [local(p.detach()) for p in model.parameters()] + [local(t) for t in states]

    for release in (False, True):
        wanted = run(gradient_release=release)
        for residence, taken in itertools.product(("host", "stream"), (False, True)):
            options = {"offload": residence, "offload_gradients": taken, "min_offload_size": 1000}
            found = run(gradient_release=release, **options)
            assert all(map(same_bits, found, wanted)), (release, residence, taken)


def parameters_may_be_replaced(here: Rank) -> None:
    """As Accelerate does it: the optimizer is made for whole parameters and gets their shards afterwards."""
    whole = make(None, "8bit")
    ours = make(here.mesh, "8bit")
    swapped = make(None, "8bit").optimizer
    swapped.param_groups[0]["params"] = list(ours.module.parameters())
    ours.optimizer = swapped
    ours.advance(3)
    whole.advance(3)
    for name in ("rows512", "rows640_even", "late", "small"):
        assert_same_state(name, ours, whole)


def replicated_parameters_equal_one_process(here: Rank) -> None:
    """DTensors that every rank has whole, as tensor parallelism leaves norms; also one without dimensions."""
    torch.manual_seed(1)
    whole = [nn.Parameter(torch.randn(shape).bfloat16()) for shape in ((72, 64), (3,), ())]
    ours = [nn.Parameter(distribute_tensor(p.detach().clone(), here.mesh, [Replicate()])) for p in whole]
    options: Any = {"lr": 1e-2, "state": "8bit", "master": "stochastic", "clip_grad_norm": 1.0}
    reference, optimizer = optim.AdamW(whole, **options), optim.AdamW(ours, **options)
    for _ in range(2):
        for _ in range(2):
            for its, param in zip(whole, ours, strict=True):
                its.grad = torch.randn_like(its)
                param.grad = as_split(its.grad, param)
            reference.step()
            optimizer.step()
        assert float(optimizer.grad_norm) == float(reference.grad_norm)  # type: ignore[arg-type]
        assert all(same_bits(local(p), its) for p, its in zip(ours, whole, strict=True))
        saved, optimizer = optimizer.state_dict(), optim.AdamW(ours, **options)
        optimizer.load_state_dict(saved)


def hybrid_sharding_equals_one_process(here: Rank) -> None:
    """HSDP's placements, on meshes of two processes: replicas of a shard, and shards of a replica."""
    assert here.world == 2
    whole = make(None, "8bit", clip_grad_norm=0.5)
    whole.advance(3)
    for sizes in ((2, 1), (1, 2)):
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("replicate", "shard"))
        ours = make(None, "8bit")
        for name in SHAPES:
            placed = distribute_tensor(ours.param(name).detach(), mesh, [Replicate(), Shard(0)])
            ours.module.register_parameter(name, nn.Parameter(placed))
        group = {k: v for k, v in ours.optimizer.param_groups[0].items() if k != "params"}
        ours.optimizer = optim.AdamW(ours.module.parameters(), **{**group, "clip_grad_norm": 0.5})
        ours.advance(3)
        _assert_same_norm(ours.optimizer, whole.optimizer)  # a replica is not counted twice
        for name in SHAPES:
            if aligned(name, "8bit", sizes[1]):
                assert_same_state(name, ours, whole)


# --- Norms ----------------------------------------------------------------------------------------------


def _assert_same_norm(ours: optim.AdamW, whole: optim.AdamW) -> None:
    """Squares are exact in double and no term is negative, so with u = 2^-53 each addition on the way
    costs at most u of the sum. By the norm's definition (docs/formats.md) these are 65536/16 in a chunk and
    less than 20 above; the ranks' sums, roots and squares are less than 20 more. The root halves the error,
    and both sides have it.
    """
    bound = (65536 / 16 + 40) * 2.0**-53
    mine, its = float(ours.grad_norm), float(whole.grad_norm)  # type: ignore[arg-type]
    assert math.isclose(mine, its, rel_tol=bound, abs_tol=0.0), (mine, its)


def whole_tensors_are_measured(here: Rank) -> None:
    """LAMB and LARS scale by norms of whole tensors, whose rows are on other ranks."""
    for kind, options in (("LAMB", {}), ("LARS", {"momentum": 0.9, "trust_coefficient": 0.02})):
        runs = []
        for mesh in (here.mesh, None):
            module = Parameters(torch.float32)
            if mesh is not None:
                fully_shard(module, mesh=mesh)
            made = getattr(optim, kind)(module.parameters(), lr=1e-2, trust_ratio=True, **options)
            runs.append(Run(module, made))
            runs[-1].advance(4)
        ours, whole = runs
        for name in SHAPES:
            mine, its = local(ours.param(name)), rows_here(whole.param(name), ours.param(name))
            torch.testing.assert_close(mine, its, rtol=1e-6, atol=1e-7, msg=lambda m, n=name: f"{n}: {m}")


def clipping_uses_the_global_norm(here: Rank) -> None:
    ours, whole = make(here.mesh, "8bit", clip_grad_norm=0.5), make(None, "8bit", clip_grad_norm=0.5)
    unclipped = make(here.mesh, "8bit")
    for _ in range(3):
        for run in (ours, whole, unclipped):
            run.advance()
        _assert_same_norm(ours.optimizer, whole.optimizer)
        assert_same_everywhere([ours.optimizer.grad_norm], here.world)  # type: ignore[list-item]
    grads = [gradient(name, 3).to(torch.bfloat16) for name in SHAPES]  # type: ignore[union-attr]
    exact = math.sqrt(math.fsum(x * x for grad in grads for x in grad.flatten().tolist()))
    assert math.isclose(float(ours.optimizer.grad_norm), exact, rel_tol=1e-12)  # type: ignore[arg-type]
    # The factor, a double rounded to fp32, comes out the same here: clipped steps are equal in bits.
    for name in SHAPES:
        if aligned(name, "8bit", here.world):
            assert_same_state(name, ours, whole)
    largest = [n for n in SHAPES if local(ours.param(n)).numel()]
    assert not all(same_bits(local(ours.param(n)), local(unclipped.param(n))) for n in largest)


def one_bad_gradient_skips_every_rank(here: Rank) -> None:
    """A NaN among the last rank's rows alone."""
    for state in ("8bit", "fp32"):
        ours = make(here.mesh, state, skip_nonfinite=True)
        ours.advance(3)
        assert not ours.optimizer.last_step_skipped()
        tensors = [*ours.module.parameters(), *(t for n in SHAPES for t in ours.state(n).values())]
        before = [local(t).detach().clone() for t in tensors]
        grad = gradient("rows640", 4)
        assert grad is not None
        grad[-1, -1] = float("nan")
        for name, param in ours.module.named_parameters():
            given = grad if name == "rows640" else gradient(name, 4)
            param.grad = as_split(given.to(param.dtype), param)  # type: ignore[union-attr]
        bad_here = bool(local(ours.param("rows640").grad).isnan().any())  # type: ignore[arg-type]
        assert bad_here == (here.rank == here.world - 1)
        ours.optimizer.step()
        assert ours.optimizer.last_step_skipped()
        assert all(same_bits(local(t), b) for t, b in zip(tensors, before, strict=True))
        ours.advance()
        assert not ours.optimizer.last_step_skipped()
        assert int(ours.state("rows512")["step"]) == 4


def a_rank_without_gradients_joins_the_norm(here: Rank) -> None:
    """Experts that saw no token on one rank: it has nothing to step, and the others wait for its part."""
    for group_of_it in (0, 1):  # one of its groups is without, or both are
        params = [nn.Parameter(distribute_tensor(torch.ones(6, 64), here.mesh, [Shard(0)])) for _ in range(2)]
        options: Any = {"clip_grad_norm": 1.0, "skip_nonfinite": True, "state": "8bit"}
        optimizer = optim.AdamW([{"params": [p]} for p in params], **options)
        for turn, value in enumerate((1.0, float("nan"), 2.0)):
            for number, param in enumerate(params):
                absent = here.rank == 0 and number >= group_of_it
                param.grad = None if absent else as_split(torch.full((6, 64), value), param)
            optimizer.step()
            assert optimizer.last_step_skipped() == (turn == 1)
            present = 2 * 6 * 64 - (2 - group_of_it) * -(-6 // here.world) * 64
            norm = float(optimizer.grad_norm)  # type: ignore[arg-type]
            assert norm == pytest.approx(value * math.sqrt(present), rel=1e-12, nan_ok=True)
        for param in params:
            param.grad = None
        optimizer.step()  # no rank has a gradient
        assert float(optimizer.grad_norm) == 0.0  # type: ignore[arg-type]
        assert not optimizer.last_step_skipped()


def gradients_placed_otherwise(here: Rank) -> None:
    """Partial sums, replicas of a shard's gradient, and results of collectives that are still under way."""
    torch.manual_seed(2)
    for placed, given in ((Replicate(), Partial()), (Shard(0), Replicate()), (Shard(0), Partial())):
        whole = nn.Parameter(torch.randn(64, 96))
        ours = nn.Parameter(distribute_tensor(whole.detach().clone(), here.mesh, [placed]))
        options: Any = {"state": "8bit", "clip_grad_norm": 1.0}
        reference, optimizer = optim.AdamW([whole], **options), optim.AdamW([ours], **options)
        for _ in range(3):
            grad = torch.randint(-8, 9, (64, 96)).float()  # sums are exact
            its = grad / here.world if isinstance(given, Partial) else grad
            whole.grad = its * here.world if isinstance(given, Partial) else its
            ours.grad = DTensor.from_local(its, here.mesh, [given], run_check=False)
            reference.step()
            optimizer.step()
            assert same_bits(ours.full_tensor(), whole)  # type: ignore[attr-defined]
    norm = parallelize_module(nn.LayerNorm(96), here.mesh, SequenceParallel())
    optimizer = optim.AdamW(norm.parameters())
    norm(torch.randn(2, 4 * here.world, 96)).square().sum().backward()
    assert any(isinstance(p, Partial) for p in norm.weight.grad.placements)  # type: ignore[union-attr]
    optimizer.step()
    assert_same_everywhere([local(p) for p in norm.parameters()], here.world)


def gradients_of_collectives_are_waited_for(here: Rank) -> None:
    for sharded in (True, False):
        whole = nn.Parameter(torch.ones(32, 8))
        plain = whole.detach().clone()
        ours = nn.Parameter(distribute_tensor(plain, here.mesh, [Replicate()]) if sharded else plain)
        reference, optimizer = optim.AdamW([whole]), optim.AdamW([ours])
        for turn in range(3):
            mine = torch.full((32, 8), float(here.rank + turn))
            reduced = funcol.all_reduce(mine, "sum", here.mesh.get_group())
            assert type(reduced) is funcol.AsyncCollectiveTensor
            ours.grad = reduced
            if sharded:
                ours.grad = DTensor.from_local(reduced, here.mesh, [Replicate()], run_check=False)
            whole.grad = torch.full((32, 8), float(sum(rank + turn for rank in range(here.world))))
            reference.step()
            optimizer.step()
            assert same_bits(local(ours), whole)


# --- Errors ---------------------------------------------------------------------------------------------


def unsupported_parameters_are_errors(here: Rank) -> None:
    columns = nn.Parameter(distribute_tensor(torch.randn(64, 96), here.mesh, [Shard(1)]))
    split = r"parameter 0 of group 0: the parameter is split as \(Shard\(dim=1\),\), expected Shard\(dim=0\)"
    with pytest.raises(ValueError, match=split + r" or Replicate\(\): .*; shard it on dimension 0"):
        optim.AdamW([columns], state="8bit")
    rows = nn.Parameter(distribute_tensor(torch.randn(64, 96), here.mesh, [Shard(0)]))
    rank1 = "parameter 'w': a sharded parameter cannot have '4bit-rank1' states: use '4bit'"
    with pytest.raises(ValueError, match=rank1):
        optim.AdamW([("w", rows)], state="4bit-rank1")
    optimizer = optim.AdamW([rows], state="8bit")
    other = init_device_mesh("cpu", (1, here.world), mesh_dim_names=("one", "all"))
    rows.grad = distribute_tensor(torch.randn(64, 96), other, [Replicate(), Shard(0)])
    with pytest.raises(RuntimeError, match=r"the gradient is on .*, expected the parameter's"):
        optimizer.step()
    assert not optimizer.state


FOR_WORLD = {
    3: (
        ddp_replicas_equal_one_process,
        shards_equal_one_process,
        whole_tensors_are_measured,
        clipping_uses_the_global_norm,
        one_bad_gradient_skips_every_rank,
        a_rank_without_gradients_joins_the_norm,
    ),
    2: (
        ddp_replicas_equal_one_process,
        ddp_refuses_gradient_release,
        release_without_averaging_works_beside_other_ranks,
        shards_equal_one_process,
        whole_tensors_are_measured,
        training_with_fsdp_equals_one_process,
        offload_with_fsdp_equals_without,
        parameters_may_be_replaced,
        replicated_parameters_equal_one_process,
        hybrid_sharding_equals_one_process,
        clipping_uses_the_global_norm,
        one_bad_gradient_skips_every_rank,
        a_rank_without_gradients_joins_the_norm,
        gradients_placed_otherwise,
        gradients_of_collectives_are_waited_for,
        unsupported_parameters_are_errors,
    ),
}
