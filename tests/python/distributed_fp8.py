"""Checks of octavo.fp8 with several processes; test_distributed_fp8.py starts them."""

from __future__ import annotations

import os

os.environ["OCTAVO_FP8_REFERENCE"] = "1"

import torch
import torch.distributed as dist
from distributed_worker import Rank
from octavo import fp8
from octavo.fp8 import choice_timing
from octavo.optim import AdamW8bit
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

HISTORY = 4


def recipe(**fields: object) -> fp8.Recipe:
    return fp8.Recipe(select="always", amax_history_len=HISTORY, **fields)  # type: ignore[arg-type]


def data(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def gathered(rank: Rank, tensor: Tensor) -> list[Tensor]:
    found = [torch.empty_like(tensor) for _ in range(rank.world)]
    dist.all_gather(found, tensor.contiguous())
    return found


def one_step(rank: Rank, chosen: fp8.Recipe) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layer = fp8.Linear(32, 32, recipe=chosen)
    x = (1 + rank.rank) * data(5, 32, 32)
    layer(x).sum().backward()
    fp8.end_step()
    return layer, x


def maxima_are_those_of_all_ranks(rank: Rank) -> None:
    layer, x = one_step(rank, recipe())
    states = layer.fp8_site.states
    assert all(each.equal(states) for each in gathered(rank, states))
    largest = max(each.abs().max().item() for each in gathered(rank, x))
    assert states[0, 0].item() == (torch.tensor(448.0) / torch.tensor(largest)).item()


def maxima_stay_where_they_are_if_asked(rank: Rank) -> None:
    layer, x = one_step(rank, recipe(reduce_amax=False))
    states = layer.fp8_site.states
    assert states[0, 0].item() == (torch.tensor(448.0) / x.abs().max()).item()
    assert not all(each.equal(states) for each in gathered(rank, states))


def an_infinity_of_one_rank_is_forgotten_by_all(rank: Rank) -> None:
    layer = fp8.Linear(32, 32, recipe=recipe())
    x = data(5, 32, 32)
    if rank.rank == 1:
        x[0, 0] = torch.inf
    layer(x)
    fp8.end_step()
    assert layer.fp8_site.states[:, :2].eq(1).all()
    assert not layer.fp8_site.states[:, 2:].any()


def optimizers_in_the_backward_pass_share_maxima_of_the_same_sites(rank: Rank) -> None:
    """Every layer has its own optimizer. The objects between them move addresses apart in each rank."""
    junk, layers, optimizers = list[object](), [], []
    for number in range(6):
        torch.manual_seed(number)
        layers.append(fp8.Linear(32, 32, recipe=recipe()))
    for number in (3, 0, 5, 1, 4, 2) if rank.rank else range(6):
        optimizers.append(torch.optim.SGD(layers[number].parameters(), lr=0))
        junk += [torch.optim.SGD([torch.zeros(1)]) for _ in range(rank.rank)]

        def step(param: Tensor, optimizer: torch.optim.Optimizer = optimizers[-1]) -> None:
            optimizer.step()

        layers[number].weight.register_post_accumulate_grad_hook(step)
    x = torch.ones(32, 32)
    sum((layer(x * (i + 1)).sum() for i, layer in enumerate(layers)), torch.zeros(())).backward()
    layers[0](x)  # ends the step
    scales = torch.stack([layer.fp8_site.states[0, 0] for layer in layers])
    assert scales.equal(torch.tensor(448.0) / torch.arange(1.0, 7.0)), scales
    del junk


def a_shape_has_one_decision(rank: Rank) -> None:
    own = choice_timing._agreed("a shape", rank.rank + 3)
    agreed = torch.tensor([own])
    assert len({each.item() for each in gathered(rank, agreed)}) == 1
    assert 3 <= own < 3 + rank.world
    # Ranks may meet shapes in any order, and some never.
    if rank.rank == 0:
        assert choice_timing._agreed("a shape of one rank", 5) == 5


def model() -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    return fp8.convert(layers, recipe())


def train(rank: Rank, net: nn.Module, steps: int = 4) -> list[float]:
    optimizer = AdamW8bit(net.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        x = data(10 * step + rank.rank, 32, 32)
        loss = (net(x) - x.sin()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item() / rank.world)
    return losses


def ddp_keeps_ranks_alike(rank: Rank) -> None:
    net = model()
    losses = train(rank, DistributedDataParallel(net))
    assert losses[-1] < losses[0]
    for tensor in net.state_dict().values():
        assert all(each.equal(tensor) for each in gathered(rank, tensor))
    assert all((layer.fp8_site.states[:, :2] != 1).all() for layer in (net[0], net[2]))


def fsdp_has_the_losses_of_ddp(rank: Rank) -> None:
    expected = train(rank, DistributedDataParallel(model()))
    net = model()
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=rank.mesh)
    fully_shard(net, mesh=rank.mesh)
    found = train(rank, net)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=2e-2, atol=0)
    # The weights' memory is another one in each step: histories go on.
    for layer in (net[0], net[2]):
        assert (layer.fp8_site.states[:, 3:] > 0).all()
        packed = layer.get_extra_state()
        again = model()[0]
        again.set_extra_state(packed)
        assert again.fp8_site.states.equal(layer.fp8_site.states)
    assert isinstance(fp8.state_dict(net), dict)


CHECKS = (
    maxima_are_those_of_all_ranks,
    maxima_stay_where_they_are_if_asked,
    an_infinity_of_one_rank_is_forgotten_by_all,
    optimizers_in_the_backward_pass_share_maxima_of_the_same_sites,
    a_shape_has_one_decision,
    ddp_keeps_ranks_alike,
    fsdp_has_the_losses_of_ddp,
)
