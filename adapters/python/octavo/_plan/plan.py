"""octavo.plan itself: the arguments, the step on fake tensors, and the report of it."""

from __future__ import annotations

import contextlib
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
    """What training `model` takes of a GPU that need not be here: memory by owner, and the time of a step.

    The model may be on any device, `meta` too, and stays as it is. Nothing of it is computed, unless it is
    measured. `batch` is what one forward pass of one GPU is given: a tensor, a shape, a (shape, dtype), or a
    tuple (arguments by place) or dict (by name) of these. Shapes alone are of the model's dtype; by names
    that end in ids, mask, labels, tokens or targets, of int64. `optimizer` is a class or an object of
    octavo.optim or torch.optim, a function of parameters that makes one, or None. `gpu` is a name such as
    "h100" or "rtx 4090", a size such as "24GB", or "this".

    `loss` makes a scalar of the model's output; without it that is the output's `loss`, or the mean of
    squares of its first floating tensor. `autocast` is the dtype of torch.autocast around forward and loss,
    `dtype` that of the parameters (as model.to), `accumulate` the number of passes before a step.
    `gradient_release` and `offload` are arguments of octavo.optim. With `num_gpus` gradients are in buckets
    of DistributedDataParallel, as views. `measure=True` runs steps of a copy on this machine's GPU instead.
    By default that is done only where fake tensors cannot run the model and `gpu` is this machine's, with
    small batches. `measure=False` never measures.

    Raises PlanError, which names operator and module, where the model cannot be run without values.
    """
    if accumulate < 1 or num_gpus < 1:
        raise ValueError(f"plan: got accumulate={accumulate}, num_gpus={num_gpus}, expected at least 1")
    if accumulate > 1 and gradient_release:
        raise ValueError("plan: gradient_release takes one backward pass per step, got accumulate > 1")
    if num_gpus > 1 and gradient_release:
        raise ValueError("plan: gradient_release and DistributedDataParallel exclude each other: num_gpus=1")
    job = _Job(model, optimizer, batch, loss or default_loss, autocast, dtype, accumulate, num_gpus)
    job.options = {"gradient_release": gradient_release, "offload": offload}
    if measure:
        return real.measured(job, gpu, small=False)
    found = _core.Gpu(gpu)
    job.launch_seconds = _launch_seconds(gpu)
    try:
        return job.planned(found)
    except PlanError as problem:
        here = gpu == "this" and num_gpus == 1 and not isinstance(optimizer, torch.optim.Optimizer)
        if measure is False or not here or not problem.measurable or not torch.cuda.is_available():
            raise
        try:
            return real.measured(job, gpu, small=True, because=str(problem))
        except Exception as error:
            raise problem from error


def _launch_seconds(gpu: str) -> float:
    """Measured for this machine's GPU, where torch has it."""
    name, _, number = gpu.strip().lower().partition(":")
    if name != "this" or not torch.cuda.is_available():
        return host.LAUNCH_SECONDS

    def launches(model: nn.Module) -> float:
        job = _Job(model, None, host.BATCH, default_loss, torch.bfloat16, None, 1, 1)
        job.launch_seconds = 1.0
        return job.planned(_core.Gpu(gpu)).host_seconds

    index = int(number) if number else torch.cuda.current_device()
    return host.launch_seconds(torch.device("cuda", index), launches)


def default_loss(output: Any) -> Tensor:
    """The output's own loss, or the mean of squares of its first floating tensor, in fp32."""
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
    """Whether the environment asks torch's allocator for them."""
    asked = ",".join(os.environ.get(f"PYTORCH_{name}ALLOC_CONF", "") for name in ("", "CUDA_"))
    return re.search(r"expandable_segments\s*:\s*true", asked, re.IGNORECASE) is not None


class _Job:
    """One plan. Not a dataclass: a model compares by identity, and so does this."""

    launch_seconds: float = host.LAUNCH_SECONDS

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        given: Any,
        loss: _Loss,
        autocast: torch.dtype | None,
        dtype: torch.dtype | None,
        accumulate: int,
        num_gpus: int,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise TypeError(f"plan: model is a {type(model).__name__}, expected a torch.nn.Module")
        self.optimizer, self.given, self.loss = optimizer, given, loss
        self.autocast, self.dtype, self.accumulate, self.num_gpus = autocast, dtype, accumulate, num_gpus
        self.options: dict[str, Any] = {}
        self.notes: list[str] = []
        compiled = getattr(model, "_orig_mod", None)
        self.model: nn.Module = model if compiled is None else compiled
        if compiled is not None:
            self.notes.append("the model is compiled, and planned as it is without that")
        if any(isinstance(module, nn.RNNBase) for module in self.model.modules()):
            self.notes.append(
                "recurrent layers are planned step by step; cuDNN has them whole, and is faster"
            )

    def planned(self, gpu: _core.Gpu) -> PlanReport:
        if gpu.capability < (8, 0) and torch.bfloat16 in (self.autocast, self.dtype):
            self.notes.append(
                f"bfloat16 is slow on {gpu.name}, whose tensor cores support float16 and not bfloat16; "
                "use torch.float16"
            )
        with fake_gpu(gpu, self.notes) as (_, device), attention.chosen_for(gpu):
            recorder = Recorder(gpu, device)
            with recorder:
                step = _Step(self, gpu, recorder)
                try:
                    return step.report()
                finally:
                    step.close()

    @property
    def floating(self) -> torch.dtype:
        """The dtype of floating inputs whose shape alone is given."""
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
        self.args, self.kwargs = inputs.Inputs(recorder.device, job.floating, job.dtype).of(job.given)
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
        """Removes the hooks: the collector does not see what they refer to, and the model would stay."""
        for hook in self._hooks:
            hook.remove()

    def _completed(self, param: Tensor) -> None:
        self.recorder.own(param.grad, _core.GRADIENTS)
        if self.buckets is not None and self.last_pass:
            self.buckets.completed(param)
        self.stepper.completed(self.recorder, param)

    def report(self) -> PlanReport:
        recorder = self.recorder
        recorder.kernels.clear()  # of making the copy
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

    def _passes(self) -> tuple[list[list[_core.Kernel]], int]:
        """The kernels of each pass, and where the last one's backward pass begins."""
        recorder, found, backward = self.recorder, [], 0
        # Later passes add to the gradients of the first one, all in the same way.
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
        # The engine turns gradients off at its own time; fake_gpu.py says why that matters.
        with torch.no_grad():
            self._loss.backward()
        self.stepper.backward_ended(recorder)
        recorder.phase = FORWARD
        return backward - begin

    def _communication(self, kernels: list[_core.Kernel], backward: int) -> float:
        """Seconds that nothing hides: of all-reduces, and of copies to host memory."""
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
            # Both ways at once.
            moved = self.stepper.moved_to_host / 2 / self.gpu.host_bandwidth
            everything = self.gpu.time(kernels, self.job.launch_seconds).seconds
            exposed += max(0.0, moved - everything)
            self.job.notes.append("offload: copies are hidden behind the passes, as after optimizer.attach()")
        return exposed

    def _report(self, memory: _core.Memory, time: _core.StepTime, exposed: float) -> PlanReport:
        owners = {**memory.owners, "rounding": memory.rounding}
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
            by_bound=time.by_bound,
            notes=self.job.notes,
        )

    # --- Errors ---

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Says in which module and operator an error came up."""
        names, stack = self._names, self.recorder.modules

        def enter(module: nn.Module, _: Any) -> None:
            stack.append(names.get(id(module)) or type(module).__name__)

        def leave(*_: Any) -> None:
            stack.pop()

        hooks = nn.modules.module
        before = hooks.register_module_forward_pre_hook(enter)
        after = hooks.register_module_forward_hook(leave, always_call=True)
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
    """Whether real tensors may run what fake tensors cannot."""
    kind = type(error).__name__
    return kind in _NOT_FAKE or isinstance(error, NotImplementedError) or "data pointer" in str(error)


def _plan_error(text: str, measurable: bool) -> PlanError:
    if measurable:
        text += ". Fake tensors cannot run it; where a GPU is, gpu='this' runs real steps instead"
    error = PlanError(text)
    error.measurable = measurable
    return error


def _optimizer_error(given: Any, error: Exception) -> PlanError:
    """Says which optimizer cannot be made of fake parameters or stepped, and which ones can."""
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
