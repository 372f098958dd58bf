"""Runs checks in several processes that form a gloo group on the CPU, and tells which failed and how.

A check is a function of a Rank. All ranks run the same checks in the same order; a rank in which one fails
writes its traceback and leaves, which ends what the others wait for. Ranks meet through a file, so no port
has to be free.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

COLLECTIVE_TIMEOUT = datetime.timedelta(seconds=60)
RUN_TIMEOUT = 300.0  # seconds, of all checks together; they take about 10
# Imported once, in a process that all ranks are forked from: that is most of what their start costs.
_PRELOADED = ["torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp", "octavo.optim", "pytest"]


@dataclasses.dataclass(frozen=True)
class Rank:
    rank: int
    world: int
    mesh: DeviceMesh
    folder: pathlib.Path  # the same for all ranks and runs of a session


Check = Callable[[Rank], None]


def _main(rank: int, world: int, checks: Sequence[Check], folder: pathlib.Path, report: pathlib.Path) -> None:
    torch.set_num_threads(1)
    if sys.platform.startswith("linux"):  # a machine's own name may lead nowhere
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{report}/rendezvous",
        rank=rank,
        world_size=world,
        timeout=COLLECTIVE_TIMEOUT,
    )
    here = Rank(rank, world, init_device_mesh("cpu", (world,)), folder)
    done: dict[str, str] = {}
    for check in checks:
        try:
            check(here)
            done[check.__name__] = ""
        except Exception:
            done[check.__name__] = traceback.format_exc()
        (report / f"{rank}.json").write_text(json.dumps(done))
        if done[check.__name__]:
            os._exit(1)  # without waiting for the others: they would wait for this one
    dist.destroy_process_group()


def run(world: int, checks: Sequence[Check], folder: pathlib.Path) -> dict[str, str]:
    """What went wrong in each check, by its name: "" where nothing did."""
    report = folder / f"world{world}"
    report.mkdir()
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    ranks = [context.Process(target=_main, args=(r, world, checks, folder, report)) for r in range(world)]
    for process in ranks:
        process.start()
    end = time.monotonic() + RUN_TIMEOUT
    for process in ranks:
        process.join(max(0.0, end - time.monotonic()))
    stuck = [r for r, process in enumerate(ranks) if process.is_alive()]
    for r in stuck:
        ranks[r].kill()
        ranks[r].join()
    out = dict.fromkeys((check.__name__ for check in checks), "")
    for r, process in enumerate(ranks):
        written = report / f"{r}.json"
        done = json.loads(written.read_text()) if written.exists() else {}
        ended = f"was killed after {RUN_TIMEOUT:.0f} s" if r in stuck else f"ended with {process.exitcode}"
        last = next(reversed(done), "its start")
        for name in out:
            failure = done.get(name, f"not finished: the process {ended} after {last}\n")
            out[name] += f"\nrank {r} of {world}: {failure}" if failure else ""
    return out
