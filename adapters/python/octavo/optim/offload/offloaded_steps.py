"""Steps of states in host memory: offloaded gradients, the lifetime of memory that queues use, and waiting.

The engine has queues that read gradients and write parameters and states, also after a call has returned.
Everything that they use is referenced here until the current stream, or the host, has waited for them. The
reference exists before the engine is called, so an exception at any line (Ctrl-C) frees nothing that is used.
States are not referenced: code that removes one synchronizes first (tracked_state.py, Optimizer.state).

Threads: every call of the engine holds the optimizer's lock. Autograd calls hooks in its own threads, which
acquire the lock, so no thread may run a backward pass, a closure or a user's hook while it holds the lock. A
thread that waits for the lock has released the GIL, and the engine's queues need neither.
"""

from __future__ import annotations

import array
import collections
import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from ... import _abi
from ..._engine import GRADIENTS, HOST, TO_DEVICE, TO_HOST, WEIGHTS, Engine, record_use, stream_of
from ..._shards import is_sharded, local
from ..hooks import averaged_later
from ..offload_options import Options
from ..registration import call_engine
from .attach import Attachment, Gated
from .host_states import HostStates

if TYPE_CHECKING:
    from ..optimizer import Optimizer, StepTensors
    from ..roster import Member

_WAYS = {"to_host": TO_HOST, "to_device": TO_DEVICE}
# Bytes of gradients that queues read. With more, the current stream waits for the oldest.
RETAINED_BYTES = 128 << 20


class Offload(HostStates):
    """The part of an optimizer that only offload needs."""

    def __init__(self, optimizer: Optimizer, options: Options) -> None:
        super().__init__(optimizer, options)
        self.lock = optimizer._lock
        self.engine: Engine = optimizer._engine
        self.attached: Attachment | None = None
        self.host_grads: set[int] = set()  # handles whose gradients are in host memory
        self._unsure = False  # a call that changes `host_grads` was interrupted
        # Weights that no stream has waited for, by handle.
        self.pending: dict[int, _Pending] = {}
        self._streams: dict[torch.device, int | None] = {}  # that pending steps used
        self._watched: set[int] = set()  # handles of parameters with a hook that fills the next:
        self._computed: dict[int, Tensor] = {}
        self._early: dict[int, Member] = {}  # weights with a gradient that no stream had waited for
        self._busy = False  # whether queues may be working
        self._versions: dict[int, tuple[int, int, int]] = {}  # versions of parameters when they were copied
        # References to their storages, which keep the storages' numbers unique.
        self._memory: dict[int, StorageWeakRef] = {}
        self._read: dict[int, _RetainedGrad] = {}  # gradients of pending steps, by handle
        # Other gradients, in the order of their reads.
        self._queue: collections.deque[_RetainedGrads] = collections.deque()
        self._queued = 0  # bytes
        self._alive: dict[int, list[Any]] = {}  # other memory that pending steps read, by handle
        # Memory that the queues use still exists when this is called.
        weakref.finalize(optimizer, _end, self.engine)

    # --- Gradients --------------------------------------------------------------------------------

    def pop_grads(self, params: list[Tensor]) -> None:
        """Moves the gradients of these parameters, which are on one device, to host memory."""
        optimizer = self._live_optimizer()
        tensors, grads = optimizer.collect_gradients(params)
        given, device = (tensors.handles_at, tensors.grads_at, tensors.dtype_numbers), tensors.here[0].device
        self._busy = self._unsure = True
        self._retain_grads([m.handle for m in tensors.members], grads, device)
        call_engine(optimizer, lambda: self.engine.take(*given, device))
        self.host_grads.update(m.handle for m in tensors.members)
        for param in params:
            param.grad = None
        self._unsure = False
        self._release_oldest_grads()

    def pop_late_grads(self, members: Iterable[Member]) -> None:
        """Moves gradients that hooks have not seen, of parameters with a gradient in host memory."""
        by_device: dict[torch.device, list[Tensor]] = {}
        for m in members:
            if m.handle in self.host_grads and m.param.grad is not None:
                by_device.setdefault(m.device, []).append(m.param)
        for params in by_device.values():
            self.pop_grads(params)

    def gradient_flags(self, members: Sequence[Member], given: list[Any]) -> list[Any]:
        """Returns 1 for a gradient on the device, 2 for one in host memory, 0 for none."""
        held = self.host_grads
        return [1 if g is not None else 2 * (m.handle in held) for m, g in zip(members, given, strict=True)]

    def query_host_grads(self) -> None:
        """Queries the engine's gradients after a call was interrupted."""
        if self._unsure:
            members = self._live_optimizer()._roster.registered()
            self.host_grads = {m.handle for m in members if self.engine.holds(m.handle)}
            self._unsure = False

    def discard_grads(self) -> None:
        """Discards the gradients of this step that are in host memory."""
        with self.lock:
            self._early.clear()
            self._computed.clear()
            if self.host_grads or self._unsure:
                self.engine.drop()
                self.host_grads.clear()
                self._unsure = False

    def forget_versions(self, members: Iterable[Member]) -> None:
        """Forgets the versions of members that were registered again: their copies may be gone."""
        for m in members:
            self._versions.pop(m.handle, None)

    def forget_handles(self, handles: Iterable[int]) -> None:
        """Forgets handles that the engine removes. No work is unfinished."""
        for handle in handles:
            self.host_grads.discard(handle)
            self.pending.pop(handle, None)
            self._early.pop(handle, None)
            self._alive.pop(handle, None)
            self._versions.pop(handle, None)
            self._memory.pop(handle, None)

    def check_no_host_grad(self, member: Member) -> None:
        """Raises RuntimeError if the engine has the gradient of a parameter that it must remove."""
        if member.handle in self.host_grads:
            raise RuntimeError(
                "its memory has moved since the backward pass, and offload_gradients has its gradient for "
                "the old one; move parameters before a backward pass or after step(), or call zero_grad() now"
            )

    # --- Steps ------------------------------------------------------------------------------------

    def attach(self, model: nn.Module) -> None:
        with self.lock:
            if self.attached is None:
                self.attached = Attachment(self)
            self.attached.add(model)

    def defers(self, release: bool) -> bool:
        """Returns whether the next step returns before the current stream is ordered after it."""
        return release or self.attached is not None

    def prepare_step(self, tensors: StepTensors, release: bool) -> None:
        """Copies parameters that other code has written since the step before, and sets the order in which
        the next forward pass needs them.
        """
        if self.attached is not None and not release:
            registered = self._live_optimizer()._roster.registered()
            self.attached.set_update_order([m for m in registered if self.is_offloaded(m)])
        stale: dict[torch.device, list[int]] = {}
        for m in self._offloaded_members(tensors).on_host:
            if _version(m.param) != self._versions.get(m.handle):
                stale.setdefault(m.device, []).append(m.handle)
        for device, handles in stale.items():
            self.engine.refresh(handles, TO_HOST, device)

    def retain_for_step(
        self, tensors: StepTensors, grads: Sequence[Tensor], alive: list[Any], release: bool
    ) -> None:
        """References what the queues of the next step read and write, and marks weights as pending. If the
        step fails, waiting for these weights costs little and changes nothing.
        """
        self._busy = self._unsure = True
        members = self._offloaded_members(tensors)
        if not self.defers(release) or not members.away:
            return
        handles = members.handles
        if release:
            self.check_waited(handles)
        before = [self._alive[handle] for handle in handles if handle in self._alive] if self._alive else []
        kept = [*alive, *before]
        self._alive.update(dict.fromkeys(handles, kept))
        streams = {device: stream_of(device) for device in set(members.on)}
        self._streams.update(streams)
        read = zip(tensors.here, grads, members.here_offloaded, strict=True)
        retained = {m.handle: (grad, streams[m.device]) for m, grad, away in read if away}
        if release and retained:
            self._retain_grads(retained, [grad for grad, _ in retained.values()], members.on[0])
        else:
            self._read.update(retained)
        if self.attached is not None:
            if members.gated is None or members.gated.roots != len(self.attached.roots):
                members.gated = self.attached.gated(members.away)
                self._watch_gradients()
            self.attached.defer(members.gated)
        # This line is last, because gates must wait for every pending weight.
        here = map(local, members.params) if members.sharded else members.params
        storages = map(torch.Tensor.untyped_storage, here)
        weights = zip(members.away, members.addresses, members.on, storages, strict=True)
        self.pending.update(zip(handles, weights, strict=True))

    def finish_step(self, tensors: StepTensors, release: bool) -> None:
        """Notes that a step was queued and the parameters' versions were incremented."""
        members = self._offloaded_members(tensors)
        self._computed.clear()
        self.host_grads.difference_update(members.handles)
        self._unsure = False
        for m in members.on_host:
            self._record_version(m)
        if not release and (self.attached is not None or self.options.offload_gradients):
            for param in tensors.params:
                param.grad = None
        if not self.defers(release):
            self._release_all_grads()  # the current stream is ordered after all reads
        elif self.attached is not None:
            self.attached.wait_for_loose()
        self._release_oldest_grads()

    def check_waited(self, handles: Iterable[int]) -> None:
        """Raises RuntimeError if one of these weights has a gradient although it is pending: the gradient was
        computed with the weight of before the last step.
        """
        early = self._early | {handle: self.pending[handle][0] for handle in self.pending.keys() & handles}
        if not early:
            return
        self._early.clear()
        optimizer = self._live_optimizer()
        m = min(early.values(), key=lambda each: each.place)
        more = f" (and {len(early) - 1} more)" if len(early) > 1 else ""
        raise RuntimeError(
            f"{optimizer.label_of(m)}{more}: has a gradient, but no forward pass has waited for "
            "its last update: it was used outside its module's forward, as it was before that step. Read the "
            "weight from its module in every pass, or call wait() after step()"
        )

    def before_step(self) -> None:
        """Waits for the step before. RuntimeError if a gradient was computed with a weight that no stream had
        waited for.
        """
        if self.pending:
            self._wait_for_all()
        if self._early:
            self.check_waited(())

    def _offloaded_members(self, tensors: StepTensors) -> _OffloadedMembers:
        if tensors.offloaded is None:
            tensors.offloaded = _OffloadedMembers(tensors, self)
        return tensors.offloaded  # type: ignore[no-any-return]

    def _retain_grads(self, handles: Iterable[int], grads: Sequence[Tensor], device: torch.device) -> None:
        """References gradients until they were read."""
        size = sum(grad.nbytes for grad in grads)
        self._queue.append(
            _RetainedGrads(array.array("I", handles), list(grads), size, device, stream_of(device))
        )
        self._queued += size

    def _release_oldest_grads(self) -> None:
        """Makes the current stream wait for the oldest gradients if there are too many."""
        while self._queued > RETAINED_BYTES:
            oldest = self._queue[0]
            self.engine.wait(oldest.handles, GRADIENTS, oldest.device)
            self._queue.popleft()
            self._queued -= oldest.bytes
            _record_uses([(grad, oldest.stream) for grad in oldest.grads])

    # --- Waiting ----------------------------------------------------------------------------------

    def wait(self) -> None:
        """Orders the current stream of every device after the updates of all weights."""
        with self.lock:
            streams = self._streams.items()
            if all(stream == stream_of(device) for device, stream in streams):
                self._wait_for_all()
            else:  # it may be another thread's stream; the stream that steps must still wait
                self._order_all()

    def _order_all(self) -> None:
        for device in self._devices():
            self.engine.wait(None, WEIGHTS, device)
            if self._queue:
                self.engine.wait(None, GRADIENTS, device)

    def _wait_for_all(self) -> None:
        """Orders the current streams after the updates of all weights, so nothing is pending."""
        self._order_all()
        moved = self._mark_waited(list(self.pending))
        self._release_all_grads()
        self._check_moved(moved)

    def _mark_waited(self, handles: Iterable[int]) -> list[Member]:
        """Notes that the current stream has waited for these weights. Returns members with new memory."""
        moved, held, attached = [], self.host_grads, self.attached is not None
        sharded = bool(self._live_optimizer()._roster.sharded)
        for handle in handles:
            m, address, _, _ = self.pending.pop(handle)
            self._alive.pop(handle, None)
            param = m.param
            if (local(param) if sharded else param).data_ptr() != address:
                moved.append(m)
            elif (
                attached
                and (param.grad is not None or handle in held)
                and (handle in self._computed or handle not in self._watched)
            ):
                self._early[handle] = m
        return moved

    def _watch_gradients(self) -> None:
        """Adds hooks that note which gradients this rank has computed: DistributedDataParallel also gives
        gradients to parameters that the rank's pass has not used.
        """
        assert self.attached is not None
        for m in self._live_optimizer()._roster.members:
            if m.handle not in self._watched and m.param.requires_grad and averaged_later(m.param):
                self._watched.add(m.handle)
                note = functools.partial(self._computed.__setitem__, m.handle)
                self.attached.store_hook(m.param.register_post_accumulate_grad_hook(note))

    def _check_moved(self, moved: Sequence[Member]) -> None:
        if not moved:
            return
        raise RuntimeError(
            f"{self._live_optimizer().label_of(moved[0])}: its memory was replaced (param.data = ...) "
            "while a step was writing it, so the new memory lacks that update. Call wait() after "
            "step(), before the memory is replaced"
        )

    def _release_all_grads(self) -> None:
        """Drops all gradients: the current streams are ordered after all reads."""
        _record_uses(
            [*self._read.values(), *((grad, read.stream) for read in self._queue for grad in read.grads)]
        )
        self._read, self._alive, self._queued = {}, {}, 0
        self._queue.clear()
        self._streams.clear()
        if self.attached is not None:
            self.attached.clear_pending()

    def wait_for(self, handles: Iterable[int]) -> None:
        """Orders the current streams after the updates of these weights, if they are pending."""
        by_device: dict[torch.device, list[int]] = {}
        moved: list[Member] = []
        with self.lock:
            for handle in set(handles):
                if (found := self.pending.get(handle)) is not None:
                    by_device.setdefault(found[2], []).append(handle)
            for device, some in by_device.items():
                self.engine.wait(array.array("I", some), WEIGHTS, device)
                moved += self._mark_waited(some)
                _record_uses([self._read.pop(handle) for handle in some if handle in self._read])
            if by_device and not self.pending and not self.host_grads:
                # An interrupted step may have left gradients that queues read, and no step waits for them.
                for device in self._devices() if self._queue else ():
                    self.engine.wait(None, GRADIENTS, device)
                self._release_all_grads()
            self._check_moved(moved)

    def synchronize(self) -> None:
        """Blocks the host until the queues are idle, so states may be read and written."""
        with self.lock:
            if self._busy:
                self.engine.synchronize()
                self._busy = False

    def sync_params(self, way: str) -> None:
        if way not in _WAYS:
            raise ValueError(f"Invalid way: {way!r}, expected 'to_host' or 'to_device'")
        with self.lock:
            self.wait()
            self._busy = True
            for device in self._devices():
                self.engine.refresh((), _WAYS[way], device)
            for m in self._live_optimizer()._roster.registered():
                if self.residence(m) == HOST:
                    self._record_version(m)

    def _record_version(self, member: Member) -> None:
        """Notes that the copy in host memory equals the parameter."""
        handle, now = member.handle, _version(member.param)
        before = self._versions.get(handle)
        if before is None or before[2] != now[2]:
            self._memory[handle] = StorageWeakRef(local(member.param).untyped_storage())
        self._versions[handle] = now

    def _devices(self) -> list[torch.device]:
        return list(self._live_optimizer()._buffers.by_device)


class _OffloadedMembers:
    """The offloaded members of a step. Registering a member again makes new StepTensors, and so a new one."""

    def __init__(self, tensors: StepTensors, states: HostStates) -> None:
        self.away = [m for m in tensors.members if states.is_offloaded(m)]
        self.on_host = [m for m in self.away if states.residence(m) == HOST]
        self.handles = [m.handle for m in self.away]
        self.on = [m.device for m in self.away]
        self.params = [m.param for m in self.away]
        self.sharded = any(map(is_sharded, self.params))
        self.addresses = [local(param).data_ptr() for param in self.params]
        self.gated: Gated | None = None  # where a model is attached
        self.here_offloaded = [states.is_offloaded(m) for m in tensors.here]


# A member, its weight's address and device, and the storage that a queue writes.
_Pending = tuple["Member", int, torch.device, torch.UntypedStorage]
_RetainedGrad = tuple[Tensor, "int | None"]  # a gradient, and the stream that it was made on


@dataclasses.dataclass(slots=True)
class _RetainedGrads:
    """Gradients that a queue reads, and the stream on which they were made."""

    handles: array.array[int]
    grads: list[Tensor]
    bytes: int
    device: torch.device
    stream: int | None


def _record_uses(kept: Iterable[_RetainedGrad]) -> None:
    """Records the current streams as users of these gradients, before the caller drops them."""
    for grad, stream in kept:
        record_use(grad, stream)


def _version(param: Tensor) -> tuple[int, int, int]:
    """Returns the versions of a DTensor and of its shard (a write to one is not counted by the other), and
    the number of its storage, because a new storage may have the address of the old one.
    """
    here = local(param)
    number = here.untyped_storage()._cdata
    if param.is_inference():
        return -1, -1, number
    own = param._version
    return own, own if here is param else here._version, number


def _end(engine: Engine) -> None:
    with contextlib.suppress(_abi.OctavoError):  # the optimizer is gone, so no caller could handle the error
        engine.synchronize()
