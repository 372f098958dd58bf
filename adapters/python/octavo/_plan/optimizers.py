"""Optimizers of fake parameters: torch's are stepped, ours are asked what a step would allocate and move."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import optim
from ..optim import forecast
from ._core import MASTER, STATES, WORKSPACE, Kernel
from .trace import OPTIMIZER, Recorder


class Stepper:
    """No optimizer: a forward and a backward pass alone."""

    host_bytes = 0
    moved_to_host = 0.0  # and back, in a step
    steps_again = False  # a second step does not do what the first has shown

    def completed(self, recorder: Recorder, param: Tensor) -> None:
        """The gradient of a parameter is complete, in the backward pass."""

    def backward_ended(self, recorder: Recorder) -> None:
        pass

    def step(self, recorder: Recorder) -> None:
        pass


class TorchStepper(Stepper):
    steps_again = True  # the first one also makes the states

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def step(self, recorder: Recorder) -> None:
        before, recorder.owner, recorder.phase = recorder.owner, WORKSPACE, OPTIMIZER
        self._optimizer.step()
        recorder.owner = before
        for entry in self._optimizer.state.values():
            for value in entry.values():
                if isinstance(value, Tensor):
                    recorder.own(value, STATES)


class OwnStepper(Stepper):
    def __init__(self, optimizer: optim.Optimizer) -> None:
        self._forecast = forecast.Forecast(optimizer)
        self._gathered = forecast.Gathered(self._forecast)
        self._states: dict[Tensor, Any] = {}
        self._begun = False
        self._taken: list[Tensor] = []  # whose gradients are in host memory
        self.host_bytes = self._forecast.host_bytes()

    def completed(self, recorder: Recorder, param: Tensor) -> None:
        taken = self._forecast.takes and self._forecast.is_away(param)
        if self._forecast.releases or taken:
            self._use(recorder, self._gathered.add(param))

    def backward_ended(self, recorder: Recorder) -> None:
        if self._forecast.releases or self._forecast.takes:
            self._use(recorder, self._gathered.rest())
            self._gathered.end()

    def _use(self, recorder: Recorder, params: Sequence[Tensor]) -> None:
        if params and self._forecast.releases:
            self._step(recorder, params)
        elif params:
            self._taken += params
        self._gathered.let_go(params)

    def step(self, recorder: Recorder) -> None:
        recorder.phase = OPTIMIZER
        if not self._forecast.releases:
            groups = self._forecast.optimizer.param_groups
            here = [p for group in groups for p in group["params"] if p.grad is not None]
            self._step(recorder, [*self._taken, *here])
            self._taken = []

    def _step(self, recorder: Recorder, params: Sequence[Tensor]) -> None:
        if not params:
            return
        before, phase = recorder.owner, recorder.phase
        kernels = len(recorder.kernels)
        recorder.owner, recorder.phase = STATES, OPTIMIZER
        if not self._begun:
            self._begun = True
            self._counts = self._forecast.counts(params[0].device)
            if size := self._forecast.staging_bytes():
                recorder.take(size, WORKSPACE)
        for param in params:
            if param not in self._states:
                self._states[param] = entry = self._forecast.make(param)
                recorder.own(entry.get(forecast.MASTER), MASTER)
        recorder.owner, recorder.phase = before, phase
        del recorder.kernels[kernels:]  # those that fill new states are of the first step alone
        here, link = self._forecast.moved_bytes(params)
        recorder.kernels.append(Kernel(bytes=here))
        self.moved_to_host += link


def make(
    given: Any, params: Sequence[Tensor], fakes: Mapping[int, Tensor], options: dict[str, Any]
) -> Stepper:
    """The stepper of what octavo.plan was given; `fakes`: fake parameters by the ids of the model's own.
    `options` are those of our optimizers.
    """
    if given is None:
        return Stepper()
    with forecast.without_memory():
        made = _made(given, params, fakes, {key: value for key, value in options.items() if value})
    if isinstance(made, optim.Optimizer):
        return OwnStepper(made)
    if not isinstance(made, torch.optim.Optimizer):
        raise TypeError(f"plan: optimizer gave a {type(made).__name__}, expected a torch.optim.Optimizer")
    if isinstance(made, optim.CPUOffloadOptimizer):
        raise TypeError("plan: CPUOffloadOptimizer of torch's classes steps on the CPU; use octavo.optim's")
    return TorchStepper(made)


def _made(given: Any, params: Sequence[Tensor], fakes: Mapping[int, Tensor], options: dict[str, Any]) -> Any:
    own = isinstance(given, type) and issubclass(given, optim.Optimizer)
    if options and not own:
        raise ValueError(
            f"plan: {', '.join(options)} go with a class of octavo.optim; give them to the optimizer"
        )
    if not isinstance(given, torch.optim.Optimizer):
        if not callable(given):
            raise TypeError(
                f"plan: optimizer is a {type(given).__name__}, expected a class, an object or None"
            )
        return given(list(params), **options)
    groups = [{**group, "params": _mapped(group["params"], fakes)} for group in given.param_groups]
    if isinstance(given, optim.Optimizer):
        offload = dataclasses.asdict(given._offload_options)
        released = given._release is not None
        return type(given)(groups, skip_nonfinite=given._skip_nonfinite, gradient_release=released, **offload)
    made = object.__new__(type(given))
    made.__dict__.update(given.__dict__, param_groups=groups, state=defaultdict(dict))
    for name, value in vars(made).items():
        if name.endswith("_hooks") and isinstance(value, OrderedDict):
            setattr(made, name, OrderedDict())  # those of the real training
    return made


def _mapped(params: Sequence[Tensor], fakes: Mapping[int, Tensor]) -> list[Tensor]:
    missing = [p for p in params if id(p) not in fakes]
    if missing:
        raise ValueError(
            f"plan: the optimizer has {len(missing)} parameters that the model does not have; make it of "
            "model.parameters()"
        )
    return [fakes[id(p)] for p in params]
