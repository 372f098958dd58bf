"""The optimizer that all classes of octavo.optim are: torch.optim.Optimizer over native multi-tensor steps.

A step looks at all groups first (gradients that cannot be used raise before anything is written), then makes
one native call per group, device and step count, on the current stream, without waiting for it. Nothing is
remembered that torch, a trainer or a sharding library may change between two steps; plan.py says what is
asked again.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import _engine
from .._describe import FLAG, algorithms
from .._shards import local, place_grads
from ..checkpoint import loading, portable
from ..checkpoint import native as native_form
from ..checkpoint.saved import known_moments
from . import changed, counts, options, state
from .checks import check_grad, check_param, warn_of_lost_updates
from .norms import Norms
from .plan import Cohort, Plan, Ready, shared_norms
from .release import GradientRelease
from .tracked import Entry, States

_bump_versions = torch.autograd.graph.increment_version
try:
    _bump_versions([])
except (RuntimeError, TypeError):  # torch 2.5 takes one tensor at a time

    def _bump_versions(tensor: Any) -> None:
        for each in tensor:
            torch.autograd.graph.increment_version(each)


class Optimizer(torch.optim.Optimizer):
    """Base of the optimizers here; use one of its subclasses.

    Beyond torch's arguments: `state` is the format of the moments and `master` what a bf16 parameter keeps
    beyond its 16 bits (docs/guides/python.md lists them), both also per parameter group. `clip_grad_norm`
    clips the norm of all gradients inside the step; groups have it too, so it may be scheduled.
    `skip_nonfinite` leaves everything as it is when a gradient is NaN or infinite, `gradient_release` steps
    each parameter in the backward pass and frees its gradient. `fused=True` takes `torch.amp.GradScaler`'s
    scale and found-inf on the device, `capturable=True` keeps the step count there, as torch's own optimizers
    do. `seed` is that of stochastic rounding.
    """

    algorithm: ClassVar[str]

    def __init__(
        self,
        params: Any,
        defaults: dict[str, Any],
        *,
        skip_nonfinite: bool = False,
        gradient_release: bool = False,
    ) -> None:
        self._fresh_caches()
        self._guard = bool(options.from_text(skip_nonfinite))
        self._release: GradientRelease | None = None
        super().__init__(params, defaults)
        self.state = States(self.state)
        if options.from_text(gradient_release):
            self._release = GradientRelease(self)

    # What is not the optimizer's state: rebuilt at will.
    def _fresh_caches(self) -> None:
        self._plans: dict[int, Plan] = {}
        self._norms = Norms()
        self._reports: dict[torch.device, Tensor] = {}
        self._last_norm: Tensor | None = None
        self._last_scale: Tensor | None = None
        self._captured: list[Any] = []  # what a CUDA graph may still point into

    def __getstate__(self) -> dict[str, Any]:
        extra = {"_guard": self._guard, "_released": self._release is not None}
        return {**super().__getstate__(), **extra}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        saved = dict(saved)
        released = saved.pop("_released", None)
        clip = saved.pop("_clip", None)  # of version 0.1
        super().__setstate__(saved)
        for options_of in (self.defaults, *self.param_groups):
            options_of.setdefault("clip_grad_norm", clip)
        self.state = States(self.state)
        self._fresh_caches()
        self._tell_scaler()
        if released is not None:
            self._release = GradientRelease(self) if released else None

    # --- Parameter groups -------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if not isinstance(param_group, dict):
            raise TypeError(f"param_group must be a dict, but got {type(param_group)}")
        param_group = dict(param_group)  # the next optimizer made of it asks for its own defaults
        for name, default in self.defaults.items():
            param_group.setdefault(name, default)
        options.check_group(algorithms()[self.algorithm], param_group)
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        try:
            seen: set[int] = set()
            for index, param in enumerate(added["params"]):
                with self._named(added, index):
                    if id(param) in seen:
                        raise ValueError("it is in the group twice, and one step would write it twice")
                    seen.add(id(param))
                    check_param(param)
                    state.kind_of(param, added)
        except Exception:
            self.param_groups.pop()
            raise
        warn_of_lost_updates(self, added)
        self._plans = {}
        self._tell_scaler()
        if getattr(self, "_release", None) is not None:
            self._release.watch(added)  # type: ignore[union-attr]

    def _tell_scaler(self) -> None:
        """GradScaler asks the optimizer, not its groups, who unscales."""
        if any(group.get("fused") for group in self.param_groups):
            self._step_supports_amp_scaling = True

    def _name(self, group: Mapping[str, Any], index: int) -> str:
        names = group.get("param_names")
        if names:
            return f"parameter {names[index]!r}"
        number = next((i for i, g in enumerate(self.param_groups) if g is group), len(self.param_groups))
        return f"parameter {index} of group {number}"

    @contextlib.contextmanager
    def _named(self, group: Mapping[str, Any], index: int) -> Iterator[None]:
        """Puts the class and the parameter in front of an error's message."""
        try:
            yield
        except (ValueError, RuntimeError, TypeError) as error:
            kind = type(error) if type(error) in (ValueError, TypeError) else RuntimeError
            raise kind(f"{type(self).__name__}: {self._name(group, index)}: {error}") from error

    # --- The step ---------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step over every parameter that has a gradient. Returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step()
        return loss

    @torch._disable_dynamo
    def _step(self) -> None:
        self._check_capture()
        if self._release is not None:
            if getattr(self, "found_inf", None) is not None:
                raise RuntimeError(
                    f"{type(self).__name__}: gradient_release steps during the backward pass, before "
                    "GradScaler can unscale; train in bfloat16 without a scaler, or without gradient_release"
                )
            self._release.end_of_step(self)
            return
        if len(self._plans) > len(self.param_groups):  # groups were taken away, and plans keep parameters
            self._plans = {}
        self.step_groups([(group, group["params"], id(group)) for group in self.param_groups])

    def _track_state(self) -> None:
        if type(self.state) is not States:  # somebody has put another one in its place
            self.state = States(self.state)

    def step_groups(
        self,
        parts: Iterable[tuple[dict[str, Any], list[Tensor], int]],
        norm_of: Callable[[Ready], Mapping[torch.device, Tensor]] | None = None,
    ) -> None:
        """Steps parameters of several groups; the number selects the plan. `norm_of` replaces the norm of all
        of them.
        """
        self._track_state()
        # All parameters are checked before any gets a state.
        checked = []
        for group, params, number in parts:
            found = self._known(group, params, number)
            kinds = self._check(group, params) if found is None else {}
            checked.append((group, params, number, found, kinds))
        ready, shared = [], {}
        for group, params, number, found, kinds in checked:
            if kinds:
                found = self._planned(group, params, number, kinds)
            if found is not None:
                ready.append((group, found))
                shared.update(found.plan.shared)
            elif self.needs_norm():  # other ranks may have gradients
                shared.update(shared_norms(params))
        if not ready and not shared:
            self.nothing_stepped()
            return
        for group, _ in ready:
            if len(ready) > 1:  # a single one the core checks before it writes
                options.check_numbers(algorithms()[self.algorithm], group)
            options.check_clip(group)
        norms: Mapping[torch.device, Tensor] = {}
        if norm_of is not None:
            norms = norm_of(ready[0][1])
        elif self.needs_norm():
            norms = self._norms.total([found for _, found in ready], shared)
        self._last_norm, self._last_scale = next(iter(norms.values()), None), None
        if norms and getattr(self, "grad_scale", None) is not None:
            self._last_scale = self.grad_scale.detach().clone()  # the scaler updates its own in place
        for group, found in ready:
            for cohort in found.plan.cohorts:
                self._launch(group, found, cohort, norms)
            _bump_versions(found.plan.bumped)
        if self._guard:
            launched = {cohort.native.device for _, found in ready for cohort in found.plan.cohorts}
            self._report_elsewhere(norms, launched)

    def _key(self, group: Mapping[str, Any]) -> tuple[Any, ...]:
        """The options that native groups are made for."""
        return (algorithms()[self.algorithm].switches(group), group["master"], self._counts_on_device(group))

    def _known(self, group: Mapping[str, Any], params: list[Tensor], number: int) -> Ready | None:
        """The plan of an earlier step, where it still fits."""
        plan = self._plans.get(number)
        if plan is None:
            return None
        if plan.sharded:
            place_grads(params)
        return plan.ready(params, self._key(group), self.state)

    def _check(self, group: Mapping[str, Any], params: list[Tensor]) -> dict[int, state.Kind]:
        """The kinds of the parameters that have a gradient, by id. Raises where one cannot be stepped."""
        place_grads(params)
        index_of = {id(p): i for i, p in enumerate(group["params"])}
        kinds = {}
        for param in params:
            if param.grad is not None:
                with self._named(group, index_of[id(param)]):
                    check_param(param)
                    check_grad(param, param.grad)
                    kinds[id(param)] = self._kind(param, group)
        return kinds

    def _planned(
        self, group: dict[str, Any], params: list[Tensor], number: int, kinds: Mapping[int, state.Kind]
    ) -> Ready:
        """A new plan, for parameters that have been checked."""
        present = [p.grad is not None for p in params]
        plan = Plan(params, present, self._key(group))
        grads = [local(p.grad) for p in plan.active]  # type: ignore[arg-type]
        grads = plan.first_grads(grads)
        self._build(plan, group, grads, kinds)
        self._plans[number] = plan
        return Ready(plan, grads, array.array("Q", [g.data_ptr() for g in grads]))

    def _build(
        self, plan: Plan, group: dict[str, Any], grads: list[Tensor], kinds: Mapping[int, state.Kind]
    ) -> None:
        """States where they are missing or elsewhere, then one native group per device and step count."""
        number_of = {id(p): i for i, p in enumerate(p for g in self.param_groups for p in g["params"])}
        moments = state.moments_of(self.algorithm, group)
        fresh: dict[torch.device, Tensor] = {}  # the step count of parameters that step for the first time
        bound: list[_engine.Bound] = []
        for param, grad in zip(plan.active, grads, strict=True):
            here, kind, tracked = local(param), kinds[id(param)], self.state[param]
            entry = tracked.plain()
            changed.move(entry, here.device, self._counts_on_device(group))
            changed.fit_master(entry, here, kind, type(self).__name__)
            # SGD's momentum begins with a first step's gradient, also where it is switched on later.
            if "step" not in entry or (self.algorithm == "sgd" and moments and moments[0][0] not in entry):
                entry["step"] = fresh.setdefault(here.device, self._new_step(here.device, group))
            state.fill_missing(entry, here, kind, moments)
            state.lay_out(entry, kind, moments)
            bound.append(state.bound(entry, here, grad, kind, moments, number_of[id(param)]))
            tracked.replace(entry)
            tracked.kind = kind
        entries = [self.state[p] for p in plan.active]
        on_device = self._counts_on_device(group)
        for members in counts.cohorts(plan.active, entries, on_device, self._capturing):
            counted = counts.own_count(self.state, [plan.active[i] for i in members])
            native = _engine.NativeGroup(
                self.algorithm,
                bound[members[0]].param.device,
                [bound[i] for i in members],
                algorithms()[self.algorithm].switches(group),
            )
            everyone = len(members) == len(grads)
            plan.cohorts.append(Cohort(native, None if everyone else members, counted))
        plan.watch(self.state)

    def _counts_on_device(self, group: Mapping[str, Any]) -> bool:
        """Whether the host does not know if a step was taken, or does not take part."""
        by_group = group.get("capturable") or group.get("fused")
        # If a scaler lets one group skip steps itself, it lets all groups do so.
        return bool(by_group or self._guard or getattr(self, "_step_supports_amp_scaling", False))

    def _new_step(self, device: torch.device, group: Mapping[str, Any]) -> Tensor:
        return torch.zeros(
            (), dtype=torch.int64, device=device if self._counts_on_device(group) else torch.device("cpu")
        )

    def _kind(self, param: Tensor, group: Mapping[str, Any]) -> state.Kind:
        """How the state is stored: as when it was made, even if the group's options have changed."""
        asked = state.kind_of(param, group)
        tracked = self.state.get(param)
        if not tracked:
            return asked
        entry = tracked.plain()
        if state.MASTER in entry and entry[state.MASTER].shape != asked.rows.local_shape:
            raise RuntimeError(
                f"its master bits have shape {tuple(entry[state.MASTER].shape)}, expected "
                f"{asked.rows.local_shape}"
            )
        if not entry.keys() & known_moments().keys():
            return asked
        known = tracked.kind or asked
        if known.rows != asked.rows:
            raise RuntimeError(
                f"its state was made for shape {known.rows.local_shape}, expected {asked.rows.local_shape}; "
                "parameters must keep their shape (or make a new optimizer)"
            )
        if known.order != asked.order:
            raise RuntimeError(
                f"its state was made for dimensions that lie in memory in the order {known.order}, and they "
                f"now lie in the order {asked.order}; parameters must keep their shape and memory format (or "
                "make a new optimizer, and load the state_dict() from before the change)"
            )
        if known.master != asked.master:
            known = dataclasses.replace(known, master=asked.master)
        kind = native_form.kind_of_entry(entry, known)
        changed.settle(tracked, kind)
        return kind

    def _launch(
        self, group: Mapping[str, Any], found: Ready, cohort: Cohort, norms: Mapping[torch.device, Tensor]
    ) -> None:
        native = cohort.native
        device = native.device
        native.bind_grads(found.addresses_of(cohort.members))
        args = native.args
        alive = self._set_numbers(args, group, device)
        norm = norms.get(device)
        args.guard, args.max_norm, args.scalar_norm = int(self._guard), 0.0, None
        if norm is not None:
            args.max_norm, args.scalar_norm = group.get("clip_grad_norm") or 0.0, norm.data_ptr()
        for key, field in (("grad_scale", "scalar_loss_scale"), ("found_inf", "scalar_found_inf")):
            scalar = getattr(self, key, None)
            if scalar is not None:
                scalar = scalar.to(device=device, dtype=torch.float32)
                alive.append(scalar)
            setattr(args, field, None if scalar is None else scalar.data_ptr())
        args.scalar_report = None
        if self._guard:
            args.scalar_report = self._report_buffer(device).data_ptr()
        on_device = self._counts_on_device(group)
        if on_device:
            args.scalar_step, args.step = cohort.step.data_ptr(), 0
        else:
            args.scalar_step, args.step = None, int(cohort.step) + 1
        native.step()
        if not on_device:
            cohort.step.add_(1)
        if cohort.mirrors:
            cohort.count_mirrors()
        if self._capturing:
            self.state.changes.captured = True
            self._captured.extend([found.plan, found.plan.tensors(), alive, norm, self._norms, self._reports])

    def _set_numbers(self, args: Any, group: Mapping[str, Any], device: torch.device) -> list[Tensor]:
        """The hyper-parameters. Returns tensors that must live until the call is made."""
        alive: list[Tensor] = []
        lr = group["lr"]
        args.scalar_lr = None
        if not isinstance(lr, Tensor):
            args.lr = lr
        elif lr.device == device and device.type != "cpu":
            lr = lr.detach().to(torch.float32)
            alive.append(lr)
            args.scalar_lr = lr.data_ptr()
        else:
            args.lr = float(lr)
        if -options.RATE_SLACK <= args.lr < 0:
            args.lr = 0.0
        described = algorithms()[self.algorithm]
        for option in described.options:
            if option.name != "lr" and option.offset >= 0:
                kind = ctypes.c_uint32 if option.range == FLAG else ctypes.c_double
                kind.from_buffer(args, option.offset).value = option.of(group) or 0
        args.maximize, args.seed = int(group["maximize"]), group["seed"]
        args.decay = 2 if described.decoupled else 1
        return alive

    # --- CUDA graphs, reports ---------------------------------------------------------------------

    _capturing = False

    def _check_capture(self) -> None:
        self._capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if self._capturing and not all(group.get("capturable") for group in self.param_groups):
            raise RuntimeError(
                f"Attempting CUDA graph capture of step() for an instance of {type(self).__name__} but "
                "param_groups' capturable is False."
            )

    def _report_buffer(self, device: torch.device) -> Tensor:
        if device not in self._reports:
            self._reports[device] = torch.zeros(2, dtype=torch.int64, device=device)
        return self._reports[device]

    def _report_elsewhere(self, norms: Mapping[torch.device, Tensor], launched: set[torch.device]) -> None:
        """The report of devices that no step ran on: nothing of an earlier step. Where other ranks have
        gradients and this one has none, the norm of all says whether they skip.
        """
        for device in norms.keys() - launched:
            self._report_buffer(device)[0] = norms[device].view(torch.int64)[2] > 0
        for device in self._reports.keys() - launched - norms.keys():
            self._reports[device].zero_()

    def nothing_stepped(self) -> None:
        """A step without any gradient has no norm and skips nothing."""
        self._last_norm = self._last_scale = None
        self._report_elsewhere({}, set())

    def needs_norm(self) -> bool:
        return self._guard or any(group.get("clip_grad_norm") is not None for group in self.param_groups)

    def released(self, norm: Tensor, nonfinite: Tensor) -> None:
        """What gradient_release has found over all gradients of a step."""
        self._last_norm, self._last_scale = norm.reshape(1), None
        if self._guard:
            self._report_buffer(norm.device)[0] = nonfinite > 0

    @property
    def grad_norm(self) -> Tensor | None:
        """The norm of the last step's gradients (unscaled, before clipping; a 0-d tensor on their device),
        where it was computed.
        """
        if self._last_norm is None:
            return None
        norm = self._last_norm[0].clone()  # the next step writes the same buffer
        return norm if self._last_scale is None else norm / self._last_scale

    def last_step_skipped(self) -> bool:
        """Whether `skip_nonfinite` skipped the last step. Waits for the device."""
        return any(bool(buffer[0].item() & 0xFF) for buffer in self._reports.values())

    def state_bytes(self) -> int:
        """Bytes of optimizer state in this process: moments, scales, master bits."""
        return sum(state.state_bytes(entry) for _, entry in self.entries())

    def entries(self) -> list[tuple[Tensor, dict[str, Any]]]:
        """Parameters and their states, as dictionaries of their own."""
        self._track_state()
        return [(p, entry.plain()) for p, entry in self.state.items() if isinstance(entry, Entry)]

    def reset_state(self, param: Tensor | None = None) -> None:
        """Begins anew with one parameter's state, or with all: moments and step count are zero, in place.
        Master bits stay: they belong to the weight.
        """
        known = [p for group in self.param_groups for p in group["params"]]
        if param is not None and not any(p is param for p in known):
            raise ValueError(f"{type(self).__name__}: reset_state got a tensor that is not a parameter of it")
        self._track_state()
        if param is not None and self.state.changes.captured:
            raise RuntimeError(
                f"{type(self).__name__}: parameters in a captured CUDA graph share a step count: "
                "reset_state() resets all of them"
            )
        for each in known if param is None else [param]:
            if each in self.state:
                changed.reset(self.state[each], alone=param is not None)

    # --- Checkpoints ------------------------------------------------------------------------------

    @torch._disable_dynamo
    def state_dict(self) -> dict[str, Any]:
        """torch's form; docs/guides/checkpoints.md describes the tensors. Sharded parameters give DTensors"""
        return native_form.save(self)

    @torch._disable_dynamo
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Loads a state dict of this library, of torch.optim, torchao, bitsandbytes or flashoptim.

        Formats and block sizes stay those of this optimizer: states are converted where they differ.
        Everything is checked first; on an error nothing has changed.
        """
        loading.load(self, state_dict)

    def _replace_state(
        self, groups: list[dict[str, Any]], loaded: list[native_form.Loaded], others: Mapping[Any, Any]
    ) -> None:
        """Takes over what a load has read: groups, and the states one by one."""
        self._track_state()
        for group, merged in zip(self.param_groups, groups, strict=True):
            lr, new = group["lr"], merged["lr"]
            if isinstance(lr, Tensor):  # a scheduler or a graph may hold it
                lr.fill_(float(new))
                merged["lr"] = lr
            group.update(merged)
        group_of = {id(p): group for group in self.param_groups for p in group["params"]}
        known = counts.kept(self.state, loaded)
        kept = {id(item.param) for item in loaded}
        for param in [p for p in self.state if isinstance(p, Tensor) and id(p) not in kept]:
            del self.state[param]
        for item in loaded:
            group, tracked = group_of[id(item.param)], self.state[item.param]
            entry = tracked.plain()
            loading.write_entry(entry, item, state.moments_of(self.algorithm, group))
            shared = self._new_step(local(item.param).device, group).fill_(item.saved.step)
            shared = known.setdefault((shared.device, item.saved.step), shared)
            if tracked.mirror is not None and tracked.mirror.own.device == shared.device:
                tracked.mirror.own.fill_(item.saved.step)  # somebody has it
            else:
                entry["step"] = shared
            tracked.replace(entry)
            tracked.count_with(shared)
            tracked.kind = item.kind
        self.state.update(others)
        self._plans = {}  # step counts and buffers may be other tensors now
        if self._release is not None:
            self._release.forget()

    def portable_state_dict(self) -> dict[str, Any]:
        """A state dict that torch.optim's optimizer of the same name loads: fp32 moments on the CPU, and
        `step`.
        """
        return portable.portable_state_dict(self)

    def master_parameters(self) -> dict[Tensor, Tensor]:
        """The full-precision value (fp32, on the CPU) of each parameter that keeps master bits."""
        return portable.master_parameters(self)
