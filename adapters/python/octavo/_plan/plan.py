"""octavo.plan: its arguments, the step on fake tensors, and the report."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from .._abi import OctavoError
from . import _core, attention, host, optimizers
from . import batch as inputs
from . import measure as real
from .fake_gpu import fake_gpu
from .ranks import Buckets
from .report import PlanReport
from .trace import BACKWARD, FORWARD, Recorder, repeated

_UNKNOWN_VALUES = ("DataDependentOutputException", "DynamicOutputShapeException")
_NOT_FAKE = (*_UNKNOWN_VALUES, "UnsupportedOperatorException", "UnsupportedFakeTensorException")
_NO_VALUES = "its result depends on values, and a plan has none"
_Loss = Callable[[Any], Tensor]


class PlanError(OctavoError):
    """A model could not be run on fake tensors; the message names the operator and the module."""

    measurable = False  # whether a GPU would run it


def plan(
    model: nn.Module,
    optimizer: Any = None,
    batch: Any = None,
    *,
    gpu: str = "this",
    loss: _Loss | None = None,
    autocast: torch.dtype | None = None,
    dtype: torch.dtype | None = None,
    accumulate: int = 1,
    gradient_release: bool = False,
    offload: str | None = None,
    num_gpus: int = 1,
    measure: bool | None = None,
) -> PlanReport:
    """Returns a forecast of training `model`: GPU memory by owner, and the time of a step. The GPU need not
    be in this machine.

    The model may be on any device, also on `meta`. It is not changed, and nothing is computed unless steps
    are measured. `batch` is the input of one forward pass on one GPU: a tensor, a shape, a (shape, dtype), or
    a tuple (positional arguments) or dict (named arguments) of these. A shape without a dtype has the model's
    dtype, or int64 if its name ends in ids, mask, labels, tokens or targets. `optimizer` is a class or an
    object of octavo.optim or torch.optim, a function that makes one of parameters, or None. `gpu` is a name
    such as "h100" or "rtx 4090", a size such as "24GB", or "this".

    `loss` makes a scalar of the model's output; by default it is the output's `loss`, or the mean of squares
    of its first floating tensor. `autocast` is the dtype of torch.autocast around forward and loss, `dtype`
    the dtype of the parameters (as in model.to), `accumulate` the number of micro-batches before a step.
    `gradient_release` and `offload` are arguments of octavo.optim. With `num_gpus` the gradients are views of
    DistributedDataParallel's buckets. `measure=True` runs steps of a copy on this machine's GPU instead. By
    default this is done, with small batches, only if fake tensors cannot run the model and `gpu` is "this".
    `measure=False` never measures.

    Raises PlanError, which names operator and module, if the model cannot be run without values.
    """
    if accumulate < 1 or num_gpus < 1:
        raise ValueError(f"plan: got accumulate={accumulate}, num_gpus={num_gpus}, expected at least 1")
    if accumulate > 1 and gradient_release:
        raise ValueError("plan: gradient_release takes one backward pass per step, got accumulate > 1")
    if num_gpus > 1 and gradient_release:
        raise ValueError("plan: gradient_release and DistributedDataParallel exclude each other: num_gpus=1")
    options = {"gradient_release": gradient_release, "offload": offload}
    job = _Job(model, optimizer, batch, loss or default_loss, autocast, dtype, accumulate, num_gpus, options)
    if measure:
        return real.run_steps(job, gpu, small=False)
    found = _core.Gpu(gpu)
    job.launch_seconds = _launch_seconds(gpu)
    try:
        return job.run(found)
    except PlanError as problem:
        here = gpu == "this" and num_gpus == 1 and not isinstance(optimizer, torch.optim.Optimizer)
        if measure is False or not here or not problem.measurable or not torch.cuda.is_available():
            raise
        try:
            return real.run_steps(job, gpu, small=True, because=str(problem))
        except Exception as error:
            raise problem from error


def _launch_seconds(gpu: str) -> float:
    """Measures this machine if torch finds its GPU; other machines have the default."""
    name, _, number = gpu.strip().lower().partition(":")
    if name != "this" or not torch.cuda.is_available():
        return host.LAUNCH_SECONDS

    def launches(model: nn.Module) -> float:
        job = _Job(model, None, host.BATCH, autocast=torch.bfloat16, launch_seconds=1.0)
        return job.run(_core.Gpu(gpu)).host_seconds

    index = int(number) if number else torch.cuda.current_device()
    return host.launch_seconds(torch.device("cuda", index), launches)


def default_loss(output: Any) -> Tensor:
    """Returns the output's own loss, or the mean of squares of its first floating tensor, in fp32."""
    own = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    first = _first(output)
    if first is None:
        raise ValueError(f"plan: the output is a {type(output).__name__} without a tensor; give loss=")
    return first.float().square().mean()


def _first(value: Any) -> Tensor | None:
    if isinstance(value, Tensor):
        return value if value.is_floating_point() else None
    values = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return next((found for each in values if (found := _first(each)) is not None), None)


def expandable_segments() -> bool:
    """Returns whether the environment selects them in torch's allocator."""
    asked = ",".join(os.environ.get(f"PYTORCH_{name}ALLOC_CONF", "") for name in ("", "CUDA_"))
    return re.search(r"expandable_segments\s*:\s*true", asked, re.IGNORECASE) is not None


@dataclasses.dataclass(eq=False)
class _Job:
    """The arguments of a plan."""

    model: nn.Module
    optimizer: Any
    given: Any  # the batch
    loss: _Loss = default_loss
    autocast: torch.dtype | None = None
    dtype: torch.dtype | None = None
    accumulate: int = 1
    num_gpus: int = 1
    options: dict[str, Any] = dataclasses.field(default_factory=dict)  # arguments of octavo.optim
    launch_seconds: float = host.LAUNCH_SECONDS
    notes: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise TypeError(f"plan: model is a {type(self.model).__name__}, expected a torch.nn.Module")
        if (compiled := getattr(self.model, "_orig_mod", None)) is not None:
            self.model = compiled
            self.notes.append("the model is compiled, and planned as it is without that")
        if any(isinstance(module, nn.RNNBase) for module in self.model.modules()):
            self.notes.append(
                "recurrent layers are planned step by step; cuDNN has them whole, and is faster"
            )

    def run(self, gpu: _core.Gpu) -> PlanReport:
        if gpu.capability < (8, 0) and torch.bfloat16 in (self.autocast, self.dtype):
            self.notes.append(
                f"bfloat16 is slow on {gpu.name}, whose tensor cores support float16 and not bfloat16; "
                "use torch.float16"
            )
        with fake_gpu(gpu, self.notes) as (_, device), attention.choose_attention(gpu):
            recorder = Recorder(gpu, device)
            with recorder:
                step = _Step(self, gpu, recorder)
                try:
                    return step.report()
                finally:
                    step.close()

    @property
    def floating(self) -> torch.dtype:
        """The dtype of inputs that are given as shapes."""
        if self.dtype is not None:
            return self.dtype
        found = (p.dtype for p in self.model.parameters() if p.is_floating_point())
        return next(found, torch.float32)


class _Step:
    """A training step of fake tensors, under a recorder."""

    def __init__(self, job: _Job, gpu: _core.Gpu, recorder: Recorder) -> None:
        self.job, self.gpu, self.recorder = job, gpu, recorder
        recorder.owner = _core.WEIGHTS
        self.model, fakes = inputs.fake_model(job.model, recorder.device, job.dtype)
        recorder.owner = _core.BATCH
        self.args, self.kwargs = inputs.Inputs(recorder.device, job.floating, job.dtype).make(job.given)
        recorder.owner = _core.ACTIVATIONS
        params = list(self.model.parameters())
        self.trained = [p for p in params if p.requires_grad]
        try:
            self.stepper = optimizers.make(job.optimizer, params, fakes, job.options)
        except Exception as error:
            if not _only_on_a_gpu(error):
                raise
            raise _optimizer_error(job.optimizer, error) from error
        self.buckets = Buckets(recorder, self.trained) if job.num_gpus > 1 else None
        self._hooks = [param.register_post_accumulate_grad_hook(self._completed) for param in self.trained]
        self._names = {id(module): name for name, module in self.model.named_modules()}
        self.last_pass = False

    def close(self) -> None:
        """Removes the hooks, whose references the garbage collector does not see."""
        for hook in self._hooks:
            hook.remove()

    def _completed(self, param: Tensor) -> None:
        self.recorder.set_owner(param.grad, _core.GRADIENTS)
        if self.buckets is not None and self.last_pass:
            self.buckets.completed(param)
        self.stepper.completed(self.recorder, param)

    def report(self) -> PlanReport:
        recorder = self.recorder
        recorder.kernels.clear()  # they made the copy
        begin = len(recorder.events)
        passes, backward = self._passes()
        after_passes = len(recorder.events), len(recorder.kernels)
        with self._named_errors():
            self.stepper.step(recorder)
            first_step = len(recorder.events), len(recorder.kernels)
            if self.stepper.steps_again:
                self.stepper.step(recorder)
        stepped = len(recorder.events), len(recorder.kernels)
        for param in self.trained:
            param.grad = None
        self._loss = None
        end = len(recorder.events)

        events = recorder.events
        work, zeroed = events[begin : after_passes[0]], events[stepped[0] : end]
        one = events[after_passes[0] : first_step[0]]
        two = events[first_step[0] : stepped[0]] if self.stepper.steps_again else one
        later, _ = repeated([*work, *two, *zeroed], recorder.last_number)
        memory = _core.simulate([*events[:begin], *work, *one, *zeroed, *later], expandable_segments())

        kernels = [kernel for some in passes for kernel in some]
        kernels += recorder.kernels[
            (first_step if self.stepper.steps_again else after_passes)[1] : stepped[1]
        ]
        time = self.gpu.time(kernels, self.job.launch_seconds)
        exposed = self._communication(passes[-1], backward)
        return self._report(memory, time, exposed)

    def _passes(self) -> tuple[list[list[Any]], int]:
        """Returns the kernels of each micro-batch, and the number of those before the last backward pass."""
        recorder, found, backward = self.recorder, [], 0
        # Later micro-batches add to the gradients of the first one, all in the same way.
        traced = min(self.job.accumulate, 2)
        for number in range(traced):
            self.last_pass = number == traced - 1
            begin = len(recorder.kernels)
            with self._named_errors():
                backward = self._pass(begin)
            found.append(recorder.kernels[begin:])
        return found + found[-1:] * (self.job.accumulate - traced), backward

    def _pass(self, begin: int) -> int:
        job, recorder = self.job, self.recorder
        recorder.phase = FORWARD
        enabled = job.autocast is not None
        with torch.autocast(recorder.device.type, dtype=job.autocast, enabled=enabled), torch.enable_grad():
            self._loss: Tensor | None = job.loss(self.model(*self.args, **self.kwargs))
        if not isinstance(self._loss, Tensor) or self._loss.numel() != 1:
            raise ValueError("plan: loss gave no scalar")
        backward = len(recorder.kernels)
        if self.buckets is not None:
            self.buckets.begin()
        recorder.phase = BACKWARD
        # Gradients are off while the engine asks for devices; fake_gpu.py explains why that matters.
        with torch.no_grad():
            self._loss.backward()
        self.stepper.backward_ended(recorder)
        recorder.phase = FORWARD
        return backward - begin

    def _communication(self, kernels: list[Any], backward: int) -> float:
        """Returns the seconds of all-reduces, and of copies to host memory, during which the GPU is idle."""
        exposed = 0.0
        whole = self.gpu.time(kernels[backward:], self.job.launch_seconds).seconds
        if self.buckets is not None:
            ready, at, seconds = [], backward, 0.0
            for place, after in sorted(self.buckets.complete.items(), key=lambda item: item[1]):
                seconds += self.gpu.time(kernels[at : backward + after], self.job.launch_seconds).seconds
                at = backward + after
                ready.append((seconds, self.buckets.sizes[place]))
            exposed += self.gpu.exposed(self.job.num_gpus, ready, whole)
        if self.stepper.moved_to_host and self.gpu.host_bandwidth:
            # Both directions run at the same time.
            moved = self.stepper.moved_to_host / 2 / self.gpu.host_bandwidth
            everything = self.gpu.time(kernels, self.job.launch_seconds).seconds
            exposed += max(0.0, moved - everything)
            self.job.notes.append("offload: copies are hidden behind the passes, as after optimizer.attach()")
        return exposed

    def _report(self, memory: Any, time: Any, exposed: float) -> PlanReport:
        owners = {**dict(zip(_core.OWNERS, memory.owners, strict=True)), "rounding": memory.rounding}
        samples = inputs.samples_of(self.args, self.kwargs)
        return PlanReport(
            gpu=self.gpu.name,
            memory=self.gpu.memory,
            peak=memory.allocated,
            reserved=memory.reserved,
            context=self.gpu.context,
            owners=owners,
            host=self.stepper.host_bytes,
            parameters=sum(p.numel() for p in self.model.parameters()),
            samples=samples * self.job.accumulate * self.job.num_gpus,
            gpu_seconds=time.gpu_seconds,
            host_seconds=time.host_seconds,
            compute_seconds=time.seconds,
            exposed_seconds=exposed,
            by_bound=dict(zip(_core.BOUNDS, time.by_bound, strict=True)),
            notes=self.job.notes,
        )

    # --- Errors ---

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Adds the module and the operator to errors."""
        names, stack = self._names, self.recorder.modules

        def enter(module: nn.Module, _: Any) -> None:
            stack.append(names.get(id(module)) or type(module).__name__)

        hooks = nn.modules.module
        before = hooks.register_module_forward_pre_hook(enter)
        after = hooks.register_module_forward_hook(lambda *_: stack.pop() and None, always_call=True)
        try:
            yield
        except Exception as error:
            raise self._explained(error) from error
        finally:
            before.remove()
            after.remove()
            stack.clear()

    def _explained(self, error: Exception) -> PlanError:
        where = {FORWARD: "forward pass", BACKWARD: "backward pass"}.get(self.recorder.phase, "")
        if not where:
            return _optimizer_error(self.job.optimizer, error)
        said, operator = str(error).strip().split("\n")[0], ""
        if (failed := self.recorder.failed) is not None and failed[2] is error:
            operator = f"operator {failed[0]} "
            where = f"module {failed[1]!r}, {where}" if failed[1] else where
        kind = type(error).__name__
        if kind in _UNKNOWN_VALUES:
            said = _NO_VALUES
        measurable = _only_on_a_gpu(error)
        return _plan_error(f"plan: {operator}in the {where}: {said or kind}", measurable)


def _only_on_a_gpu(error: Exception) -> bool:
    """Returns whether real tensors may run what fake tensors cannot."""
    kind = type(error).__name__
    return kind in _NOT_FAKE or isinstance(error, NotImplementedError) or "data pointer" in str(error)


def _plan_error(text: str, measurable: bool) -> PlanError:
    if measurable:
        text += ". Fake tensors cannot run it; where a GPU is, gpu='this' runs real steps instead"
    error = PlanError(text)
    error.measurable = measurable
    return error


def _optimizer_error(given: Any, error: Exception) -> PlanError:
    """Names the optimizer that cannot be made of fake parameters or stepped, and optimizers that can."""
    said, measurable = str(error).strip().split("\n")[0], _only_on_a_gpu(error)
    if type(error).__name__ in _UNKNOWN_VALUES:
        said = f"it reads values of tensors ({said}), and a plan has none"
    elif "compiled frames" in said:
        said, measurable = "it compiles its step, which cannot be traced", True
    kind = given if callable(given) else type(given)
    name = f"{kind.__module__}.{kind.__qualname__}" if hasattr(kind, "__qualname__") else repr(kind)
    return _plan_error(
        f"plan: the optimizer {name} cannot be planned: {said or type(error).__name__}; give a class of "
        "octavo.optim (8-bit and 4-bit states) or torch.optim, or None for the passes alone",
        measurable,
    )
