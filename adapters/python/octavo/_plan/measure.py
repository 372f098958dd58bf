"""octavo.plan(measure=True): steps of a copy of the model on this machine's GPU, for models that fake tensors
cannot run.
"""

from __future__ import annotations

import copy
import time
from typing import Any

import torch
from torch import Tensor

from .. import _abi, optim
from . import batch
from ._core import Gpu
from .report import PlanReport


def measured(job: Any, gpu: str) -> PlanReport:
    """Two steps: the first makes the states, the second is the one that is timed."""
    if not torch.cuda.is_available():
        raise _abi.OctavoError(
            "plan: measure=True runs real steps and needs a GPU, which torch does not find on this machine; "
            "without measure a plan needs none"
        )
    if gpu != "this" or job.num_gpus > 1:
        raise ValueError('plan: measure=True is of this machine\'s GPU alone: gpu="this", num_gpus=1')
    device, found = torch.device("cuda", torch.cuda.current_device()), Gpu("this")
    model = copy.deepcopy(job.model)
    on_meta = any(p.is_meta for p in model.parameters())
    model = model.to_empty(device=device) if on_meta else model.to(device)
    model = model if job.dtype is None else model.to(job.dtype)
    args, kwargs = batch.Inputs(device, job.floating, job.dtype).of(job.given)
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            value.zero_()  # a token that every vocabulary has
    options = {key: value for key, value in job.options.items() if value}
    made = _optimizer(job.optimizer, model, options)
    seconds = 0.0
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(2):
        torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(job.accumulate):
            with torch.autocast("cuda", dtype=job.autocast, enabled=job.autocast is not None):
                loss = job.loss(model(*args, **kwargs))
            loss.backward()
        if made is not None:
            made.step()
        model.zero_grad()
        torch.cuda.synchronize(device)
        seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated(device)
    host = made.host_bytes() if isinstance(made, optim.Optimizer) else 0
    return PlanReport(
        gpu=found.name,
        memory=found.memory,
        peak=peak,
        reserved=torch.cuda.max_memory_reserved(device),
        context=found.context,
        owners={"weights": sum(t.nbytes for t in (*model.parameters(), *model.buffers()))},
        host=host,
        parameters=sum(p.numel() for p in model.parameters()),
        samples=batch.samples_of(args, kwargs) * job.accumulate,
        gpu_seconds=seconds,
        host_seconds=0.0,
        exposed_seconds=0.0,
        by_bound={"measured": seconds},
        notes=["measured: what the process had allocated before is counted, too"],
        measured=True,
    )


def _optimizer(given: Any, model: torch.nn.Module, options: dict[str, Any]) -> Any:
    if given is None:
        return None
    if isinstance(given, torch.optim.Optimizer):
        raise TypeError(
            "plan: measure=True steps a copy of the model; give the optimizer's class, or a function"
        )
    return given(list(model.parameters()), **options)
