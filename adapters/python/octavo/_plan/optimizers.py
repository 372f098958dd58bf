"""Optimizers of fake parameters: torch's are stepped; those of octavo.optim have a forecast of what a step
allocates and moves.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import _codec, optim
from ..optim import hooks
from ..optim.forecast import Forecast, without_memory
from ..optim.offload import offloaded_steps
from ._core import MASTER, STATES, WORKSPACE, kernel
from .trace import OPTIMIZER, Recorder


class Stepper:
    """Does nothing, for a plan without an optimizer."""

    host_bytes = 0
    moved_to_host = 0.0  # bytes to host memory and back in a step
    steps_again = False  # the first step differs from the others

    def completed(self, recorder: Recorder, param: Tensor) -> None:
        """Called in the backward pass when the gradient of a parameter is complete."""

    def backward_ended(self, recorder: Recorder) -> None:
        pass

    def step(self, recorder: Recorder) -> None:
        pass


class TorchStepper(Stepper):
    steps_again = True  # the first step also makes the states

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def step(self, recorder: Recorder) -> None:
        before, recorder.owner, recorder.phase = recorder.owner, WORKSPACE, OPTIMIZER
        self._optimizer.step()
        recorder.owner = before
        for entry in self._optimizer.state.values():
            for value in entry.values():
                if isinstance(value, Tensor):
                    recorder.set_owner(value, STATES)


class OwnStepper(Stepper):
    """The hooks and steps of an optimizer of octavo.optim."""

    def __init__(self, optimizer: optim.Optimizer) -> None:
        self._forecast = Forecast(optimizer)
        self._states: dict[Tensor, Any] = {}
        self._begun = False
        # Parameters with a complete gradient that hooks have gathered, as in optim/hooks.py.
        self._gathered: list[Tensor] = []
        self._bytes = 0  # of these gradients
        self._retained: list[list[Tensor]] = []  # gradients that queues read
        self._on_host: list[Tensor] = []  # parameters whose gradients are in host memory
        self.host_bytes = self._forecast.host_bytes()

    def completed(self, recorder: Recorder, param: Tensor) -> None:
        forecast = self._forecast
        if forecast.releases or (forecast.offloads_grads and forecast.is_offloaded(param)):
            assert param.grad is not None
            self._gathered.append(param)
            self._bytes += param.grad.nbytes
            if not forecast.gathers or self._bytes >= hooks.GATHERED_BYTES:
                self._use_gathered(recorder)

    def backward_ended(self, recorder: Recorder) -> None:
        self._use_gathered(recorder)
        self._retained.clear()

    def _use_gathered(self, recorder: Recorder) -> None:
        """Steps or offloads the gathered parameters, and frees their gradients once no queue reads them."""
        params, self._gathered, self._bytes = self._gathered, [], 0
        if self._forecast.releases:
            self._step(recorder, params)
        else:
            self._on_host += params
        away = [p.grad for p in params if p.grad is not None and self._forecast.is_offloaded(p)]
        for param in params:
            param.grad = None
        if away:
            self._retained.append(away)
        while sum(grad.nbytes for grads in self._retained for grad in grads) > offloaded_steps.RETAINED_BYTES:
            self._retained.pop(0)

    def step(self, recorder: Recorder) -> None:
        recorder.phase = OPTIMIZER
        if not self._forecast.releases:
            groups = self._forecast.optimizer.param_groups
            here = [p for group in groups for p in group["params"] if p.grad is not None]
            self._step(recorder, [*self._on_host, *here])
            self._on_host = []

    def _step(self, recorder: Recorder, params: Sequence[Tensor]) -> None:
        if not params:
            return
        before, phase = recorder.owner, recorder.phase
        kernels = len(recorder.kernels)
        recorder.owner, recorder.phase = STATES, OPTIMIZER
        if not self._begun:
            self._begun = True
            self._counts = self._forecast.make_counts(params[0].device)
            if size := self._forecast.staging_bytes():
                recorder.allocate(size, WORKSPACE)
        for param in params:
            if param not in self._states:
                self._states[param] = entry = self._forecast.make_state(param)
                recorder.set_owner(entry.get(_codec.MASTER), MASTER)
        recorder.owner, recorder.phase = before, phase
        del recorder.kernels[kernels:]  # only the first step fills new states
        here, link = self._forecast.moved_bytes(params)
        recorder.kernels.append(kernel(here))
        self.moved_to_host += link


def make(
    given: Any, params: Sequence[Tensor], fakes: Mapping[int, Tensor], options: dict[str, Any]
) -> Stepper:
    """Returns the stepper of the optimizer that octavo.plan was given. `fakes` has fake parameters by the ids
    of the model's. `options` are arguments of octavo.optim's classes.
    """
    if given is None:
        return Stepper()
    with without_memory():
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
    if missing := sum(id(p) not in fakes for group in given.param_groups for p in group["params"]):
        raise ValueError(
            f"plan: the optimizer has {missing} parameters that the model does not have; make it of "
            "model.parameters()"
        )
    groups = [{**group, "params": [fakes[id(p)] for p in group["params"]]} for group in given.param_groups]
    if isinstance(given, optim.Optimizer):
        offload = dataclasses.asdict(given._offload_options)
        released = given._release is not None
        return type(given)(groups, skip_nonfinite=given._skip_nonfinite, gradient_release=released, **offload)
    made = object.__new__(type(given))
    made.__dict__.update(given.__dict__, param_groups=groups, state=defaultdict(dict))
    for name, value in vars(made).items():
        if name.endswith("_hooks") and isinstance(value, OrderedDict):
            setattr(made, name, OrderedDict())  # not the hooks of the real training
    return made
