"""octavo.plan(measure=True) runs steps of a copy of the model on this machine's GPU, for models that fake
tensors cannot run.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import time
from typing import Any

import torch
from torch import Tensor

from .. import _abi, optim
from . import batch
from ._core import Gpu
from .report import PlanReport


@dataclasses.dataclass(frozen=True)
class _Steps:
    """Memory and time of two steps, without the memory that the process had before."""

    samples: int
    peak: int
    reserved: int
    seconds: float
    host: int
    weights: int


def run_steps(job: Any, gpu: str, *, small: bool, because: str | None = None) -> PlanReport:
    """Measures the full batch. With `small`, or if it does not fit, it measures a quarter and half of the
    batch and extrapolates. `because` is the reason that the model is not planned.
    """
    if not torch.cuda.is_available():
        raise _abi.OctavoError(
            "plan: measure=True runs real steps and needs a GPU, which torch does not find on this machine; "
            "without measure a plan needs none"
        )
    if gpu != "this" or job.num_gpus > 1:
        raise ValueError('plan: measure=True is of this machine\'s GPU alone: gpu="this", num_gpus=1')
    device = torch.device("cuda", torch.cuda.current_device())
    found = Gpu(f"this:{device.index}")
    args, kwargs = batch.Inputs(torch.device("meta"), job.floating, job.dtype).make(job.given)
    samples = batch.samples_of(args, kwargs)
    with torch.random.fork_rng([device.index]):
        runs = _measure(job, device, samples, small=small)
    last = runs[-1]

    def at_full_batch(name: str) -> float:
        value: float = getattr(last, name)
        if len(runs) == 1:
            return value
        each = (value - getattr(runs[0], name)) / (last.samples - runs[0].samples)
        return value + max(each, 0.0) * (samples - last.samples)

    peak, seconds = round(at_full_batch("peak")), at_full_batch("seconds")
    notes = [] if because is None else [f"not planned, but measured: {because}"]
    if last.samples < samples:
        with_samples = " and ".join(str(each.samples) for each in runs)
        notes.append(f"measured with {with_samples} samples; {samples} are on the line through them")
    return PlanReport(
        gpu=found.name,
        memory=found.memory,
        peak=peak,
        reserved=max(round(at_full_batch("reserved")), peak),
        context=found.context,
        owners={"weights": last.weights},
        host=last.host,
        parameters=sum(p.numel() for p in job.model.parameters()),
        samples=samples * job.accumulate,
        gpu_seconds=seconds,
        host_seconds=0.0,
        compute_seconds=seconds,
        exposed_seconds=0.0,
        by_bound={"measured": seconds},
        notes=notes,
        measured=True,
    )


def _measure(job: Any, device: torch.device, samples: int, *, small: bool) -> list[_Steps]:
    if not small or samples == 1:
        try:
            return [_steps(job, device, samples, samples)]
        except torch.cuda.OutOfMemoryError:
            if samples == 1:
                raise
    few = max(samples // 4, 1)
    while True:
        try:
            return [_steps(job, device, samples, few), _steps(job, device, samples, min(2 * few, samples))]
        except torch.cuda.OutOfMemoryError:
            if few == 1:
                raise
            few = max(few // 4, 1)


def _steps(job: Any, device: torch.device, samples: int, some: int) -> _Steps:
    """Runs two steps with `some` samples. The first makes the states, the second is timed."""
    gc.collect()
    # cuBLAS keeps its workspaces after the first matmul; those of these steps count.
    if (clear := getattr(torch._C, "_cuda_clearCublasWorkspaces", None)) is not None:
        clear()
    torch.cuda.empty_cache()
    before, reserved = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    model = copy.deepcopy(job.model)
    on_meta = any(p.is_meta for p in model.parameters())
    model = model.to_empty(device=device) if on_meta else model.to(device)
    model = model if job.dtype is None else model.to(job.dtype)
    args, kwargs = batch.Inputs(device, job.floating, job.dtype, {samples: some}).make(job.given)
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            value.zero_()  # every vocabulary has token 0
    options = {key: value for key, value in job.options.items() if value}
    made = _optimizer(job.optimizer, model, options)
    seconds = 0.0
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
    return _Steps(
        some,
        torch.cuda.max_memory_allocated(device) - before,
        torch.cuda.max_memory_reserved(device) - reserved,
        seconds,
        made.host_bytes() if isinstance(made, optim.Optimizer) else 0,
        sum(t.nbytes for t in (*model.parameters(), *model.buffers())),
    )


def _optimizer(given: Any, model: torch.nn.Module, options: dict[str, Any]) -> Any:
    if given is None:
        return None
    if isinstance(given, torch.optim.Optimizer):
        raise TypeError(
            "plan: measure=True steps a copy of the model; give the optimizer's class, or a function"
        )
    return given(list(model.parameters()), **options)
