"""The base class of all optimizers of octavo.optim: a torch.optim.Optimizer without its step.

It has parameter groups, the state and its copies, waiting for offloaded steps, reports and checkpoints.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from .. import _engine
from .._describe import algorithms
from .._shards import local
from ..checkpoint import loading, portable
from ..checkpoint import native as native_form
from . import offload_options, options
from .checks import check_param, warn_of_lost_updates
from .device_buffers import DeviceBuffers, PartKey
from .group_options import GroupOptions
from .offload.gradient_offload import GradientOffload
from .offload.offloaded_steps import Offload
from .registration import add_step_counts
from .release import GradientRelease
from .roster import Member, Roster
from .states import state, state_repair
from .states.tracked_state import Entry, States

if TYPE_CHECKING:
    from .optimizer import StepTensors

_Method = TypeVar("_Method", bound=Callable[..., Any])


increment_versions = torch.autograd.graph.increment_version
try:
    increment_versions([])
except (RuntimeError, TypeError):  # torch 2.5 accepts one tensor at a time

    def increment_versions(tensor: Any) -> None:
        for each in tensor:
            torch.autograd.graph.increment_version(each)


def _locked(method: _Method) -> _Method:
    """Makes a method hold the optimizer's lock, which offload/offloaded_steps.py explains."""

    @functools.wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return locked  # type: ignore[return-value]


class OptimizerBase(torch.optim.Optimizer):
    """Groups, states, reports and checkpoints of an optimizer; optimizer.py adds the step."""

    algorithm: ClassVar[str]

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        skip_nonfinite: bool = False,
        gradient_release: bool = False,
        **offloading: Any,
    ) -> None:
        self._offload_options = offload_options.checked(offloading)
        self._fresh_caches()
        self._skip_nonfinite = bool(options.from_text(skip_nonfinite))
        self._release: GradientRelease | None = None
        self._gradient_offload: GradientOffload | None = None
        super().__init__(params, defaults)
        self._track_state()
        self._hook(bool(options.from_text(gradient_release)))

    @property
    def state(self) -> Any:
        return self.__dict__["state"]

    @state.setter
    def state(self, states: Any) -> None:
        with self._lock:
            self.synchronize()  # unfinished steps write the old states
            self.__dict__["state"] = states
            if type(states) is States:
                self._track_state()

    def _fresh_caches(self) -> None:
        """Makes everything that is not part of the optimizer's state."""
        self._described = algorithms()[self.algorithm]
        self._engine = _engine.Engine(self.algorithm)
        self._buffers = DeviceBuffers(self._engine)
        self._roster = Roster()
        self._group_options: list[GroupOptions] = []  # by group
        self._last_norm: Tensor | None = None
        self._last_scale: Tensor | None = None
        self._changed_options: list[int] = []  # numbers of groups
        self._capturing = False  # a CUDA graph
        self._captured: list[Any] = []  # memory that a CUDA graph may still use
        # Every call of the engine holds the lock; offloaded_steps.py has the rules.
        self._lock = threading.RLock()
        away = self._offload_options.offload != "none"
        self._offload = Offload(self, self._offload_options) if away else None

    def __getstate__(self) -> dict[str, Any]:
        self.synchronize()
        own = {"_skip_nonfinite": self._skip_nonfinite, "_released": self._release is not None}
        return {**super().__getstate__(), **own, "_offload_options": self._offload_options}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        if self.__dict__.get("_offload") is not None:
            self.synchronize()
        saved = dict(saved)
        released = saved.pop("_released", None)
        clip = saved.pop("_clip", None)  # pickles of version 0.1 have these two names
        saved.setdefault("_skip_nonfinite", saved.pop("_guard", False))
        super().__setstate__(saved)
        for options_of in (self.defaults, *self.param_groups):
            options_of.setdefault("clip_grad_norm", clip)
        self._offload_options = saved.get("_offload_options", offload_options.Options())
        self._fresh_caches()
        self._track_state()
        self._mark_for_scaler()
        self._release, self._gradient_offload = None, None
        self._hook(bool(released))

    def _hook(self, release: bool) -> None:
        """Adds the hooks of gradient release or gradient offload, if the user asked for either."""
        if release:
            self._release = GradientRelease(self)
        elif self._offload_options.offload_gradients:  # released gradients need no host memory
            self._gradient_offload = GradientOffload(self)

    # --- Parameter groups -------------------------------------------------------------------------

    @_locked
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        param_group = dict(param_group)  # another optimizer with this dictionary needs its own defaults
        options.use_documented_names(param_group, self.defaults)
        for name, default in self.defaults.items():
            param_group.setdefault(name, default)
        options.check_group(algorithms()[self.algorithm], param_group)
        if self._offload is not None and param_group.get("capturable"):
            raise ValueError("capturable=True and offload exclude each other: a graph cannot hold host work")
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        try:
            seen: set[int] = set()
            for index, param in enumerate(added["params"]):
                with self._named(added, index):
                    if id(param) in seen:
                        raise ValueError("it is in the group twice, and one step would write it twice")
                    seen.add(id(param))
                    if param.requires_grad:  # a frozen one is checked when it gets a gradient
                        check_param(param)
                        state.kind_of(param, added)
        except Exception:
            self.param_groups.pop()
            raise
        warn_of_lost_updates(self, added)
        self._mark_for_scaler()
        for hooks in (getattr(self, "_release", None), getattr(self, "_gradient_offload", None)):
            if hooks is not None:
                hooks.watch(added)

    def _mark_for_scaler(self) -> None:
        """Makes GradScaler leave unscaling to the step: it reads this attribute of the optimizer, not of its
        groups. It cannot reach gradients in host memory.
        """
        offloaded = self._offload_options.offload_gradients
        if offloaded or any(group.get("fused") for group in self.param_groups):
            self._step_supports_amp_scaling = True

    def label(self, group: Mapping[str, Any], index: int) -> str:
        """Returns the class and the parameter, as messages name them."""
        if names := group.get("param_names"):
            return f"{type(self).__name__}: parameter {names[index]!r}"
        number = next((i for i, g in enumerate(self.param_groups) if g is group), len(self.param_groups))
        return f"{type(self).__name__}: parameter {index} of group {number}"

    def label_of(self, member: Member) -> str:
        return self.label(self.param_groups[member.group], member.index)

    @contextlib.contextmanager
    def _named(self, group: Mapping[str, Any], index: int) -> Iterator[None]:
        """Begins the message of an error with the class and the parameter."""
        try:
            yield
        except (ValueError, RuntimeError, TypeError) as error:
            kind = type(error) if type(error) in (ValueError, TypeError) else RuntimeError
            raise kind(f"{self.label(group, index)}: {error}") from error

    # --- Other parts of a step --------------------------------------------------------------------

    def moments_of(self, member: Member) -> Any:
        """Returns the moments of a parameter, with names."""
        return state.moments_of(self.algorithm, self.param_groups[member.group])

    def _track_state(self) -> States:
        """Returns `optimizer.state`, which is made a States if it was replaced by another dictionary."""
        if type(self.state) is not States:
            self.state = States(self.state)
        if self._offload is not None:
            changes = self.state.changes
            changes.synchronize, changes.lock = self._offload.synchronize, self._lock
        found: States = self.state
        return found

    def _check_no_scaler(self) -> None:
        if getattr(self, "found_inf", None) is not None:
            raise RuntimeError(
                f"{type(self).__name__}: gradient_release steps during the backward pass, before "
                "GradScaler can unscale; train in bfloat16 without a scaler, or without gradient_release"
            )

    def _norm_parts(self, tensors: StepTensors) -> list[PartKey]:
        """Returns the norms of a step: first those that ranks share, in one order on all ranks and also where
        this rank has no gradient, then those of this process's gradients.
        """
        shared = ((local(m.param).device, m.groups) for m in self._roster.sharded if m.groups)
        here = ((m.device, m.groups) for m in tensors.members)
        tensors.parts = list(dict.fromkeys([*shared, *here]))
        self._buffers.add_devices(device for device, _ in tensors.parts)
        return tensors.parts

    def _check_options(self, changed: list[int]) -> list[int]:
        """Adds groups that are new to the numbers of groups with changed options. States depend on some
        options: if one of these has changed, the group's states are examined again.
        """
        new = range(len(self._group_options), len(self.param_groups))
        self._group_options += [GroupOptions(self._described) for _ in new]
        for number in (changed := [*changed, *new]):
            group, sent = self.param_groups[number], self._group_options[number]
            key = (self._described.switches(group), group["master"], self._counts_on_device(group))
            if key != sent.key:
                self._roster.mark_outdated([m for m in self._roster.registered() if m.group == number])
                sent.key = key
        return changed

    def _send_options(self, number: int) -> None:
        """Gives the engine a group's options, unless it has them."""
        group, sent = self.param_groups[number], self._group_options[number]
        amp = getattr(self, "_step_supports_amp_scaling", False)
        if not sent.is_current(group, amp):
            devices = set(self._buffers.by_device)
            if len(devices) > 1:
                used = (p for p in group["params"] if p.requires_grad or p.grad is not None)
                devices = {local(p).device for p in used}
            sent.send_to_engine(self._engine, number, group, amp, devices)

    def _counts_on_device(self, group: Mapping[str, Any]) -> bool:
        """Returns whether step counts are on the device: in a CUDA graph, or because only the device knows
        whether a step was skipped.
        """
        by_group = group.get("capturable") or group.get("fused")
        # If one group lets a scaler skip steps on the device, all groups do.
        return bool(by_group or self._skip_nonfinite or getattr(self, "_step_supports_amp_scaling", False))

    def _count_is_on_device(self, member: Member) -> bool:
        """Returns False for parameters that the CPU steps: it counts their steps, too."""
        on_cpu = self._offload is not None and self._offload.residence(member) == _engine.HOST
        return not on_cpu and self._counts_on_device(self.param_groups[member.group])

    def _count_device(self, member: Member) -> torch.device:
        return local(member.param).device if self._count_is_on_device(member) else torch.device("cpu")

    # --- Offload ----------------------------------------------------------------------------------

    def attach(self, model: nn.Module) -> None:
        """From now on step() returns before offloaded weights are up to date, and the forward of each module
        of `model` waits for the module's weights. step() also removes the gradients from the parameters.
        Evaluation, state_dict(), load_state_dict(), copying and moving the model wait for all weights, and
        reading a parameter by its name (`model.head.weight`) waits for this parameter. Call `wait()` before
        any other use of a weight. Without offload, attach() does nothing.
        """
        if not isinstance(model, nn.Module):
            raise TypeError(f"attach takes a torch.nn.Module, got {type(model).__name__}")
        if self._offload is not None:
            self._offload.attach(model)

    def wait(self) -> None:
        """Orders the current stream of every device after all unfinished work of steps, so every weight may
        be used. Only steps of an attached optimizer (`attach`) return with unfinished work.
        """
        if self._offload is not None:
            self._offload.wait()

    def synchronize(self) -> None:
        """Blocks the host until all offloaded steps are finished. Afterwards states in host memory may be
        read, and weights may be used.
        """
        if self._offload is not None:
            with self._lock:
                if self._offload.pending:
                    self._offload.wait()
                self._offload.synchronize()

    settle = synchronize  # the name of version 0.1

    def sync_params(self, way: str = "to_host") -> None:
        """With offload="host": copies the parameters to their copies in host memory, or the copies to the
        parameters ("to_device"). It is needed only after writes that torch does not count, to a parameter's
        .data.
        """
        if self._offload is not None:
            self._offload.sync_params(way)

    def zero_grad(self, set_to_none: bool = True) -> None:
        away = self._offload
        if self._gradient_offload is not None:
            self._gradient_offload.forget()
        elif away is not None:
            away.discard_grads()
        if self._release is not None and away is not None and away.attached is None:
            away.wait()  # an interrupted backward pass has not waited
        super().zero_grad(set_to_none)

    # --- CUDA graphs, reports ---------------------------------------------------------------------

    def _check_capturable(self) -> None:
        if not all(group.get("capturable") for group in self.param_groups):
            raise RuntimeError(
                f"Attempting CUDA graph capture of step() for an instance of {type(self).__name__} but "
                "param_groups' capturable is False."
            )

    def _retain_for_graph(self, tensors: StepTensors, alive: list[Tensor]) -> None:
        """References the memory that a CUDA graph uses."""
        states = [entry.tensors() for m in tensors.members if (entry := m.state()) is not None]
        rates = [sent.rate for sent in self._group_options]
        self._captured.append((tensors, states, rates, alive, self._buffers, self._engine))

    def clear_reports(self) -> None:
        """Resets norm and reports: a step without gradients has no norm and skips nothing."""
        self._last_norm = self._last_scale = None
        for report in self._buffers.reports():
            report.zero_()

    def needs_norm(self) -> bool:
        return self._skip_nonfinite or any(
            group.get("clip_grad_norm") is not None for group in self.param_groups
        )

    def end_release(self, stepped: bool) -> None:
        """Ends a step of gradient release, with the norm of all its gradients."""
        self.clear_reports()
        if stepped:
            devices = list(self._buffers.by_device) if self.needs_norm() else []
            if self._offload is not None and (devices or self._offload.attached is None):
                self._offload.wait()
            self._buffers.fill_args(
                self._skip_nonfinite, [(device, ()) for device in devices], (None, None), False
            )
            self._last_norm = self._buffers.finish_release(devices)

    @property
    def grad_norm(self) -> Tensor | None:
        """The norm of the last step's gradients, unscaled and before clipping: a 0-d tensor on their device.
        None if the step computed no norm.
        """
        if self._last_norm is None:
            return None
        norm = self._last_norm[0].clone()  # the next step writes the same buffer
        return norm if self._last_scale is None else norm / self._last_scale

    def last_step_skipped(self) -> bool:
        """Returns whether `skip_nonfinite` skipped the last step. Waits for the device."""
        return any(bool(report[0].item() & 0xFF) for report in self._buffers.reports())

    def state_bytes(self) -> int:
        """Returns the bytes of optimizer state in this process: moments, scales, master bits."""
        return sum(state.state_bytes(entry) for _, entry in self.entries())

    @_locked
    def host_bytes(self) -> int:
        """Returns the bytes of host memory that offload uses: states, copies of weights and gradients."""
        return 0 if self._offload is None else self._offload.host_bytes()

    @_locked
    def entries(self) -> list[tuple[Tensor, dict[str, Any]]]:
        """Returns parameters and copies of their states' dictionaries."""
        self.synchronize()
        self._track_state()
        return [(p, entry.plain()) for p, entry in self.state.items() if isinstance(entry, Entry)]

    @_locked
    def reset_state(self, param: Tensor | None = None) -> None:
        """Sets moments and step count of one parameter, or of all, to zero in place. Master bits are not
        changed: they belong to the weight.
        """
        known = [p for group in self.param_groups for p in group["params"]]
        if param is not None and not any(p is param for p in known):
            raise ValueError(f"{type(self).__name__}: reset_state got a tensor that is not a parameter of it")
        self.synchronize()
        self._track_state()
        if param is not None and self._captured:
            raise RuntimeError(
                f"{type(self).__name__}: parameters in a captured CUDA graph share a step count: "
                "reset_state() resets all of them"
            )
        for each in known if param is None else [param]:
            if each in self.state:
                state_repair.reset_state(self.state[each])

    # --- Checkpoints ------------------------------------------------------------------------------

    @torch._disable_dynamo
    def state_dict(self) -> dict[str, Any]:
        """Returns torch's form; docs/guides/python.md describes the tensors. Sharded parameters give
        DTensors.
        """
        return native_form.save(self)

    @torch._disable_dynamo
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads a state dict of this library, of torch.optim, torchao, bitsandbytes or flashoptim.

        This optimizer keeps its formats and block sizes: states in other formats are converted. Everything is
        checked first, so an error changes nothing.
        """
        loading.load(self, state_dict)

    @_locked
    def _replace_state(
        self, groups: list[dict[str, Any]], loaded: list[native_form.Loaded], others: Mapping[Any, Any]
    ) -> None:
        """Replaces groups and states by those that a load has read."""
        self.synchronize()  # the states are written in place
        self._track_state()
        self._roster.update_members(self.param_groups)
        if (away := self._offload) is not None:
            for member in self._roster.members:
                away.residence(member)  # raises if memory is too small
            away.reserve_memory([self._roster.member_of(item.param) for item in loaded])
        for group, merged in zip(self.param_groups, groups, strict=True):
            lr, new = group["lr"], merged["lr"]
            if isinstance(lr, Tensor):  # a scheduler or a graph may use this tensor
                lr.fill_(float(new))
                merged["lr"] = lr
            group.update(merged)
        kept = {id(item.param) for item in loaded}
        for param in [p for p in self.state if isinstance(p, Tensor) and id(p) not in kept]:
            del self.state[param]
        entries: list[tuple[Member, dict[str, Any]]] = []
        for item in loaded:
            member, entry = self._roster.member_of(item.param), self.state[item.param].plain()
            entries.append((member, entry))
            moments, device = self.moments_of(member), local(item.param).device
            if away is not None and away.is_offloaded(member):
                away.allocate_state(member, entry, item.kind)
                device = torch.device("cpu")
            loading.write_entry(entry, item, moments, device)
        uncounted = [(m, entry) for m, entry in entries if not state_repair.is_count(entry.get(state.STEP))]
        add_step_counts(self, uncounted)
        for item, (_, entry) in zip(loaded, entries, strict=True):
            tracked = self.state[item.param]
            entry[state.STEP].fill_(item.saved.step)  # in place: user code or a graph may use this tensor
            tracked.replace(entry)
            tracked.mark_changed(steps=item.saved.step)
            tracked.kind = item.kind
        self.state.update(others)
        if self._release is not None:
            self._release.forget()

    def portable_state_dict(self) -> dict[str, Any]:
        """Returns a state dict that torch.optim's optimizer of the same name loads: fp32 moments on the CPU,
        and `step`.
        """
        return portable.portable_state_dict(self)

    def master_parameters(self) -> dict[Tensor, Tensor]:
        """Returns the full-precision value (fp32, on the CPU) of each parameter with master bits."""
        return portable.master_parameters(self)
