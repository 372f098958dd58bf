"""Optimizer.step(): everything that a step does, from the closure to the engine's call.

A step checks all groups first, so an error is raised before anything is written. Then it makes one native
call per group, device and step count on the current stream, and does not wait for it.

torch, a trainer or a sharding library may change anything between two steps. A step therefore compares, in
loops that run in C: the lists of parameters, the options, the change count of `optimizer.state`, where each
parameter is in memory and how long it is, and of each gradient address, size, dtype and memory order. Only
what differs is examined and registered with the engine again (registration.py).
"""

from __future__ import annotations

import array
import itertools
import operator
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .. import _abi
from .._engine import DTYPES, stream_of_gpu
from .._shards import local, place_grads
from .base import OptimizerBase, increment_versions
from .registration import call_engine, check_and_register
from .states.tracked_state import States

if TYPE_CHECKING:
    from .device_buffers import PartKey
    from .roster import Member

_address = torch.Tensor.data_ptr
_bytes = operator.attrgetter("nbytes")
_contiguous = torch.Tensor.is_contiguous
_device = torch.Tensor.get_device
_dtype = operator.attrgetter("dtype")
_grad = operator.attrgetter("grad")
_numel = torch.Tensor.numel
_size = torch.Tensor.size
_stride = torch.Tensor.stride


class Optimizer(OptimizerBase):
    """Base of the optimizers here; use one of its subclasses.

    It has these arguments besides torch's. `state` is the format of the moments, and `master` the further
    bits of a bf16 parameter (docs/guides/python.md); groups have both, too. `clip_grad_norm` clips the norm
    of all gradients inside the step; groups have it, so it may be scheduled. `skip_nonfinite` skips the step
    if a gradient is NaN or infinite. `gradient_release` steps each parameter in the backward pass and frees
    its gradient. `fused=True` reads `torch.amp.GradScaler`'s scale and found-inf on the device, and
    `capturable=True` counts steps there, as torch's own optimizers do. `seed` is the seed of stochastic
    rounding. `offload` puts states into host memory; docs/guides/offload.md explains it and its options.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps every parameter that has a gradient. Returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step_all()
        return loss

    @torch._disable_dynamo
    def _step_all(self) -> None:
        with self._lock:
            self._capturing = torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
            if self._capturing:
                self._check_capturable()
            if self._release is None:
                self.step_params()
            else:
                self._check_no_scaler()
                self._release.end_of_step(self)

    def step_params(
        self, some: list[Tensor] | None = None, update: Callable[[StepTensors], None] | None = None
    ) -> None:
        """Steps every parameter that has a gradient, or `some` of them. `update` replaces the norm and the
        engine's step().
        """
        engine, buffers, roster = self._engine, self._buffers, self._roster
        offload, released = self._offload, some is not None
        if offload is not None:
            offload.query_host_grads()
            if not released:
                offload.before_step()
                if self._gradient_offload is not None:
                    self._gradient_offload.before_step(self)
        tensors, grads = self.collect_gradients(some)
        clips = self._skip_nonfinite
        for group in self.param_groups:
            clips = clips or group.get("clip_grad_norm") is not None
        parts: Sequence[PartKey] = ()
        if clips:
            parts = self._norm_parts(tensors) if tensors.parts is None else tensors.parts
        if not tensors.members and not parts:
            self.clear_reports()
            return
        for number in self._changed_options:
            if number in tensors.groups:
                self._send_options(number)
        if offload is not None:
            offload.prepare_step(tensors, released)
            buffers.defer = offload.defers(released)
        begun = tensors.handles_at, tensors.grads_at, tensors.dtype_numbers, bool(parts)
        if roster.removed or roster.outdated:
            call_engine(self, lambda: engine.begin(*begun))
        else:
            try:
                engine.begin(*begun)
            except _abi.OctavoError:  # raised again with the parameter's name, unless one has moved
                call_engine(self, lambda: engine.begin(*begun))
        scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        alive: list[Tensor] = []
        # The engine's arguments are as the step before left them unless one of these differs.
        streams = list(map(stream_of_gpu, buffers.gpus))
        filled = engine.plan.number, self._skip_nonfinite, parts, streams, torch.get_num_threads()
        plain = scale is None and found_inf is None and offload is None and update is None
        if not plain or self._capturing or buffers.filled != filled:
            alive = buffers.fill_args(self._skip_nonfinite, parts, (scale, found_inf), self._capturing)
            buffers.filled = filled if plain and not self._capturing else None
        if offload is not None:
            alive += [sent.rate for sent in self._group_options if sent.rate is not None]
            offload.retain_for_step(tensors, grads, alive, released)
        if update is not None:
            update(tensors)
        else:
            self._last_norm = buffers.compute_norm(parts) if parts else None
            # The scaler updates its scale in place.
            self._last_scale = scale.detach().clone() if parts and scale is not None else None
            engine.step(buffers.args)
        increment_versions(tensors.versioned)
        if self._capturing:
            self._retain_for_graph(tensors, alive)
        if offload is not None:
            offload.finish_step(tensors, released)

    def collect_gradients(self, some: list[Tensor] | None) -> tuple[StepTensors, list[Tensor]]:
        """Returns the parameters that have a gradient (of `some`, or of all), which are registered with the
        engine as they are, and their gradients on their devices.
        """
        roster, groups = self._roster, self.param_groups
        if some is None or None in map(roster.find_member, some):
            same = len(groups) == len(roster.lists)
            for group, known in zip(groups, roster.lists, strict=False):
                own = group["params"]
                same = same and len(own) == len(known) and all(map(operator.is_, own, known))
            if not same:
                roster.update_members(groups)
        alone = None if some is None else [roster.member_of(param) for param in some]
        params = roster.params if some is None else some
        if roster.sharded:
            place_grads(params)
        states = self.__dict__["state"]
        if type(states) is not States:  # it was replaced
            states = self._track_state()
        changes = states.changes
        if roster.exposed or roster.watched is not changes or roster.watched_at != changes.count:
            roster.check_states(states)
        amp, changed = getattr(self, "_step_supports_amp_scaling", False), []
        for number, (group, sent) in enumerate(zip(groups, self._group_options, strict=False)):
            now = (amp, *map(group.get, sent.names))
            if len(now) != len(sent.seen) or not all(map(operator.is_, now, sent.seen)):
                changed.append(number)
        if changed or len(groups) > len(self._group_options):
            changed = self._check_options(changed)
        self._changed_options = changed
        grads: list[Any] = list(map(_grad, params))
        flags: list[int] | None = None  # all have a gradient
        if self._offload is not None and self._offload.host_grads:
            flags = self._offload.gradient_flags(roster.members if alone is None else alone, grads)
            # The engine discards an offloaded gradient when it removes the parameter.
            if lost := [m for m in roster.outdated.values() if m.handle in self._offload.host_grads]:
                check_and_register(self, lost)
        if not all(map(operator.is_not, grads, itertools.repeat(None))):
            flags = [grad is not None for grad in grads] if flags is None else flags
            grads = [grad for grad in grads if grad is not None]
        for last in (False, True):
            key = -1 if alone is None else alone[0].handle
            tensors = roster.step_tensors.get(key)
            if tensors is None or not tensors.registered or tensors.flags != flags or tensors.among != alone:
                tensors = StepTensors(roster.members, alone, flags, bool(roster.sharded))
                roster.step_tensors[key] = tensors
            local_grads = tensors.set_gradients(grads)
            if local_grads is not None:
                return tensors, local_grads
            if last:
                break
            check_and_register(self, tensors.members)
        raise RuntimeError(f"{type(self).__name__}: parameters have changed while a step looked at them")


class StepTensors:
    """The parameters of a step, with what is compared at every step in lists. `flags` has a number for each
    of `among`, or of all: 0 no gradient, 1 a gradient, 2 a gradient in host memory. None: all have one.
    """

    def __init__(
        self, every: Sequence[Member], among: list[Member] | None, flags: list[int] | None, sharded: bool
    ) -> None:
        some = every if among is None else among
        members = list(some) if flags is None else [m for m, flag in zip(some, flags, strict=True) if flag]
        self.members, self.among, self.flags, self.sharded = members, among, flags, sharded
        self.on_host = [False] * len(members) if flags is None else [flag == 2 for flag in flags if flag]
        self.here = [m for m, on_host in zip(members, self.on_host, strict=True) if not on_host]
        self.params = [m.param for m in members]
        self.registered = all(m.address is not None for m in members)
        self.addresses = [m.address for m in members]
        self.bytes = [m.bytes for m in members]
        self.strides = [m.stride for m in members]
        self.contiguous = all(m.contiguous for m in members)
        # The next four are about gradients on their devices.
        self.numels = [m.numel for m in self.here]
        self.sizes = [m.size for m in self.here]
        self.grad_strides = [m.stride for m in self.here]
        self.devices = [m.device.index if m.device.type != "cpu" else -1 for m in self.here]
        self.groups = sorted({m.group for m in members})
        self.parts: list[PartKey] | None = None  # of the norm
        self.offloaded: Any = None  # of offloaded states (offload/offloaded_steps.py)
        self.versioned = [p for p in self.params if not p.is_inference()]
        self._handles = array.array("I", [m.handle for m in members])
        self._pack = struct.Struct(f"{len(members)}Q")
        self._grads = array.array("Q", bytes(8 * len(members)))
        self.handles_at, self.grads_at = self._handles.buffer_info()[0], self._grads.buffer_info()[0]
        # The gradients of the step before: dtypes, addresses that passed all checks, packed addresses.
        self.dtypes: list[torch.dtype] = []
        self.dtype_numbers = b""
        self._checked: list[int] = []
        self._packed: list[int] = []

    def set_gradients(self, grads: list[Tensor]) -> list[Tensor] | None:
        """Packs the gradients' addresses for the engine. Returns the local gradients in the parameters'
        memory order; None if a parameter is not as it was registered, or a gradient does not match it.
        """
        if not self.registered:
            return None
        params = [local(p) for p in self.params] if self.sharded else self.params
        if list(map(_address, params)) != self.addresses or list(map(_bytes, params)) != self.bytes:
            return None
        if not (self.contiguous and all(map(_contiguous, params))) and (
            list(map(_stride, params)) != self.strides
        ):
            return None
        if self.sharded:
            grads = list(map(local, grads))
        try:
            addresses = list(map(_address, grads))
            same = addresses == self._checked
            if same:
                addresses = self._checked
            elif 0 in addresses:  # a gradient is empty, or the result of a collective that is under way
                grads = list(map(local, grads))
                addresses = list(map(_address, grads))
            # torch refuses a gradient of another shape or device. A gradient that was replaced through .data
            # has a new address, or the length of the one before.
            if same:
                if list(map(_numel, grads)) != self.numels:
                    return None
            elif list(map(_size, grads)) != self.sizes or list(map(_device, grads)) != self.devices:
                return None
            dtypes = list(map(_dtype, grads))
            if dtypes != self.dtypes or not dtypes:
                if not DTYPES.keys() >= set(dtypes):
                    return None
                self.dtype_numbers = bytes(self._with_zeros([DTYPES[dtype] for dtype in dtypes]))
                self.dtypes = dtypes  # last, in case an exception interrupts these lines
        except RuntimeError:  # a gradient has no memory: a sparse one, for example
            return None
        self._checked = addresses
        if (
            not all(map(_contiguous, grads))
            if self.contiguous
            else list(map(_stride, grads)) != self.grad_strides
        ):
            grads = [
                g if g.stride() == stride or g.numel() < 2 else _copy(g, stride)
                for g, stride in zip(grads, self.grad_strides, strict=True)
            ]
            addresses = list(map(_address, grads))
        if addresses is not self._packed:
            if addresses != self._packed:
                packed = addresses if len(addresses) == len(self.on_host) else self._with_zeros(addresses)
                self._pack.pack_into(self._grads, 0, *packed)
            self._packed = addresses
        return grads

    def _with_zeros(self, values: list[int]) -> list[int]:
        """Adds zeros for gradients in host memory to values of those on their devices."""
        rest = iter(values)
        return [0 if on_host else next(rest) for on_host in self.on_host]


def _copy(grad: Tensor, stride: tuple[int, ...]) -> Tensor:
    return torch.empty_strided(grad.shape, stride, dtype=grad.dtype, device=grad.device).copy_(grad)
