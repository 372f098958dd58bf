"""Steps of states in host memory: gradients that are taken there, and who waits for what.

The engine has queues of its own that read gradients and write parameters and states, also after a call has
returned. What they use is kept alive here until the current stream, or the host, has waited for them. It is
registered before the engine is called, so that an exception at any line (Ctrl-C) frees nothing that is used.
States are not kept: whatever removes one settles first (tracked_state.py, Optimizer.state).

Threads: every call of the engine is made under the optimizer's lock. Autograd calls hooks in threads of its
own, and they take that lock, so no thread may run a backward pass, a closure or a user's hook while it holds
it. A thread that waits for the lock has given up the GIL, and the engine's queues need neither.
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
# Gradients that queues still read: with more, the current stream waits for the oldest.
KEPT = 128 << 20


class Offload(HostStates):
    """What an optimizer with states in host memory has beyond others."""

    def __init__(self, optimizer: Optimizer, options: Options) -> None:
        super().__init__(optimizer, options)
        self.lock = optimizer._lock
        self.engine: Engine = optimizer._engine
        self.attached: Attachment | None = None
        self.host_grads: set[int] = set()  # handles whose gradients are in host memory
        self._unsure = False  # a call that changes what is held has not come to its end
        # Weights that no stream was ordered behind, by handle.
        self.pending: dict[int, _Pending] = {}
        self._streams: dict[torch.device, int | None] = {}  # on which pending steps were made
        self._watched: set[int] = set()  # handles of parameters with a hook that notes their gradients in:
        self._computed: dict[int, Tensor] = {}
        self._early: dict[int, Member] = {}  # weights that had a gradient before they were waited for
        self._busy = False  # queues may be at work
        self._versions: dict[int, tuple[int, int, int]] = {}  # of parameters whose copies are up to date
        self._memory: dict[int, StorageWeakRef] = {}  # theirs: no other memory has its number meanwhile
        self._read: dict[int, _RetainedGrad] = {}  # gradients of steps that are pending, by handle
        self._queue: collections.deque[_RetainedGrads] = (
            collections.deque()
        )  # others, in the order of their reads
        self._queued = 0  # bytes
        self._alive: dict[int, list[Any]] = {}  # what else pending steps read, by handle
        # Whatever the queues use is still there when this is called.
        weakref.finalize(optimizer, _end, self.engine)

    # --- Gradients --------------------------------------------------------------------------------

    def pop_grads(self, params: list[Tensor]) -> None:
        """Gradients of parameters of one device go to host memory, and the parameters have none."""
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
        """Gradients that came by another way than those that are in host memory already."""
        by_device: dict[torch.device, list[Tensor]] = {}
        for m in members:
            if m.handle in self.host_grads and m.param.grad is not None:
                by_device.setdefault(m.device, []).append(m.param)
        for params in by_device.values():
            self.pop_grads(params)

    def gradient_flags(self, members: Sequence[Member], given: list[Any]) -> list[Any]:
        """Which of them have a gradient: 1 on the device, 2 in host memory."""
        held = self.host_grads
        return [1 if g is not None else 2 * (m.handle in held) for m, g in zip(members, given, strict=True)]

    def query_host_grads(self) -> None:
        """Asks the engine what it holds, where a call was interrupted."""
        if self._unsure:
            members = self._live_optimizer()._roster.registered()
            self.host_grads = {m.handle for m in members if self.engine.holds(m.handle)}
            self._unsure = False

    def discard_grads(self) -> None:
        """Forgets the gradients of this step, of which some are in host memory."""
        with self.lock:
            self._early.clear()
            self._computed.clear()
            if self.host_grads or self._unsure:
                self.engine.drop()
                self.host_grads.clear()
                self._unsure = False

    def forget_versions(self, members: Iterable[Member]) -> None:
        """The engine was told of them anew, and may have no copies of them."""
        for m in members:
            self._versions.pop(m.handle, None)

    def forget_handles(self, handles: Iterable[int]) -> None:
        """The engine is to forget them; nothing is under way."""
        for handle in handles:
            self.host_grads.discard(handle)
            self.pending.pop(handle, None)
            self._early.pop(handle, None)
            self._alive.pop(handle, None)
            self._versions.pop(handle, None)
            self._memory.pop(handle, None)

    def check_no_host_grad(self, member: Member) -> None:
        """RuntimeError where the engine is to forget a parameter whose gradient it has."""
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
        """Whether the next step returns before the current stream is ordered behind it."""
        return release or self.attached is not None

    def prepare_step(self, tensors: StepTensors, release: bool) -> None:
        """Copies parameters that somebody else has written since the step before; says in which order the
        next forward pass needs them.
        """
        if self.attached is not None and not release:
            registered = self._live_optimizer()._roster.registered()
            self.attached.set_update_order([m for m in registered if self.is_away(m)])
        stale: dict[torch.device, list[int]] = {}
        for m in self._places_of(tensors).on_host:
            if _version(m.param) != self._versions.get(m.handle):
                stale.setdefault(m.device, []).append(m.handle)
        for device, handles in stale.items():
            self.engine.refresh(handles, TO_HOST, device)

    def retain_for_step(
        self, tensors: StepTensors, grads: Sequence[Tensor], alive: list[Any], release: bool
    ) -> None:
        """Keeps what the queues of the next step read and write, and notes which weights it makes pending.
        Where no step follows, waiting for these weights costs a little and changes nothing.
        """
        self._busy = self._unsure = True
        places = self._places_of(tensors)
        if not self.defers(release) or not places.away:
            return
        if release:
            self.check_waited(places.handles)
        handles = places.handles
        before = [self._alive[handle] for handle in handles if handle in self._alive] if self._alive else []
        kept = [*alive, *before]
        self._alive.update(dict.fromkeys(handles, kept))
        streams = {device: stream_of(device) for device in set(places.on)}
        self._streams.update(streams)
        there = [
            (m, grad) for m, grad, away in zip(tensors.here, grads, places.here_away, strict=True) if away
        ]
        if release and there:
            self._retain_grads([m.handle for m, _ in there], [grad for _, grad in there], there[0][0].device)
        elif there:
            self._read.update({m.handle: (grad, streams[m.device]) for m, grad in there})
        if self.attached is not None:
            if places.gated is None or places.gated.roots != self.attached.roots():
                places.gated = self.attached.gated(places.away)
                self._watch_gradients()
            self.attached.defer(places.gated)
        # The last: a weight that is pending has gates that wait for it.
        here = map(local, places.params) if places.sharded else places.params
        storages = map(torch.Tensor.untyped_storage, here)
        self.pending.update(
            zip(handles, zip(places.away, places.addresses, places.on, storages, strict=True), strict=True)
        )

    def finish_step(self, tensors: StepTensors, release: bool) -> None:
        """A step was queued, and the parameters' versions are counted up."""
        places = self._places_of(tensors)
        self._computed.clear()
        self.host_grads.difference_update(places.handles)
        self._unsure = False
        for m in places.on_host:
            self._record_version(m)
        if not release and (self.attached is not None or self.options.offload_gradients):
            for param in tensors.params:
                param.grad = None
        if not self.defers(release):
            self._release_all_grads()  # the current stream is behind all of them
        elif self.attached is not None:
            self.attached.wait_for_loose()
        self._release_oldest_grads()

    def check_waited(self, handles: Iterable[int]) -> None:
        """RuntimeError where one of these weights is pending although its gradient is there: it was used as
        it was before the last step.
        """
        early = {
            **self._early,
            **{handle: self.pending[handle][0] for handle in self.pending.keys() & handles},
        }
        if not early:
            return
        self._early.clear()
        optimizer = self._live_optimizer()
        m = min(early.values(), key=lambda each: each.place)
        name = optimizer._name(optimizer.param_groups[m.group], m.index)
        more = f" (and {len(early) - 1} more)" if len(early) > 1 else ""
        raise RuntimeError(
            f"{type(optimizer).__name__}: {name}{more}: has a gradient, but no forward pass has waited for "
            "its last update: it was used outside its module's forward, as it was before that step. Read the "
            "weight from its module in every pass, or call wait() after step()"
        )

    def before_step(self) -> None:
        """Nothing of the step before is pending from now on. RuntimeError where a gradient was computed from
        a weight that nothing had waited for.
        """
        if self.pending:
            self._wait_for_all()
        if self._early:
            self.check_waited(())

    def _places_of(self, tensors: StepTensors) -> _Places:
        if tensors.places is None:
            tensors.places = _Places(tensors, self)
        found: _Places = tensors.places
        return found

    def _retain_grads(self, handles: Sequence[int], grads: Sequence[Tensor], device: torch.device) -> None:
        """Keeps gradients until they were read."""
        size = sum(grad.nbytes for grad in grads)
        self._queue.append(
            _RetainedGrads(array.array("I", handles), list(grads), size, device, stream_of(device))
        )
        self._queued += size

    def _release_oldest_grads(self) -> None:
        """Where too many gradients are kept, the current stream waits for the oldest ones."""
        while self._queued > KEPT:
            oldest = self._queue[0]
            self.engine.wait(oldest.handles, GRADIENTS, oldest.device)
            self._queue.popleft()
            self._queued -= oldest.bytes
            _record_uses([(grad, oldest.stream) for grad in oldest.grads])

    # --- Waiting ----------------------------------------------------------------------------------

    def wait(self) -> None:
        """Orders the current stream of every device behind all weights."""
        with self.lock:
            streams = self._streams.items()
            if all(stream == stream_of(device) for device, stream in streams):
                self._wait_for_all()
            else:  # another thread's stream, maybe: the one that steps has yet to wait
                self._order_all()

    def _order_all(self) -> None:
        for device in self._devices():
            self.engine.wait(None, WEIGHTS, device)
            if self._queue:
                self.engine.wait(None, GRADIENTS, device)

    def _wait_for_all(self) -> None:
        """The current streams are ordered behind all weights, and nothing is pending."""
        self._order_all()
        moved = self._mark_waited(list(self.pending))
        self._release_all_grads()
        self._check_moved(moved)

    def _mark_waited(self, handles: Iterable[int]) -> list[Member]:
        """The current stream is ordered behind these weights. Returns those whose memory was replaced."""
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
        """DistributedDataParallel gives gradients to parameters that this rank's pass has not used. Where it
        may, hooks note which gradients were computed here.
        """
        assert self.attached is not None
        for m in self._live_optimizer()._roster.members:
            if m.handle not in self._watched and m.param.requires_grad and averaged_later(m.param):
                self._watched.add(m.handle)
                note = functools.partial(self._computed.__setitem__, m.handle)
                self.attached.keep(m.param.register_post_accumulate_grad_hook(note))

    def _check_moved(self, moved: Sequence[Member]) -> None:
        if not moved:
            return
        optimizer, m = self._live_optimizer(), moved[0]
        raise RuntimeError(
            f"{type(optimizer).__name__}: {optimizer._name(optimizer.param_groups[m.group], m.index)}: its "
            "memory was replaced (param.data = ...) while a step was writing it, so the new memory lacks "
            "that update. Call wait() after step(), before the memory is replaced"
        )

    def _release_all_grads(self) -> None:
        """The current streams are behind everything that queues read."""
        _record_uses(
            [*self._read.values(), *((grad, read.stream) for read in self._queue for grad in read.grads)]
        )
        self._read, self._alive, self._queued = {}, {}, 0
        self._queue.clear()
        self._streams.clear()
        if self.attached is not None:
            self.attached.clear_pending()

    def wait_for(self, handles: Iterable[int]) -> None:
        """The same for those of these weights that are pending."""
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
                # Gradients of an interrupted step that were dropped: no step is ordered after their reads.
                for device in self._devices() if self._queue else ():
                    self.engine.wait(None, GRADIENTS, device)
                self._release_all_grads()
            self._check_moved(moved)

    def synchronize(self) -> None:
        """The host waits until nothing is under way: states may be read and written."""
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
        """The copy in host memory is that of the parameter as it is now."""
        handle, now = member.handle, _version(member.param)
        before = self._versions.get(handle)
        if before is None or before[2] != now[2]:
            self._memory[handle] = StorageWeakRef(local(member.param).untyped_storage())
        self._versions[handle] = now

    def _devices(self) -> list[torch.device]:
        return list(self._live_optimizer()._buffers.by_device)


class _Places:
    """Where the states of a step's members are. Whoever is registered anew is tensors anew."""

    def __init__(self, tensors: StepTensors, states: HostStates) -> None:
        self.away = [m for m in tensors.members if states.is_away(m)]
        self.on_host = [m for m in self.away if states.residence(m) == HOST]
        self.handles = [m.handle for m in self.away]
        self.on = [m.device for m in self.away]
        self.params = [m.param for m in self.away]
        self.sharded = any(map(is_sharded, self.params))
        self.addresses = [local(param).data_ptr() for param in self.params]
        self.gated: Gated | None = None  # where a model is attached
        self.here_away = [states.is_away(m) for m in tensors.here]


# A member, where its weight lies, on which device, and its memory, which a queue writes.
_Pending = tuple["Member", int, torch.device, torch.UntypedStorage]
_RetainedGrad = tuple[Tensor, "int | None"]  # a gradient, and the stream that it was made on


@dataclasses.dataclass(slots=True)
class _RetainedGrads:
    """Gradients that a queue reads."""

    handles: array.array[int]
    grads: list[Tensor]
    bytes: int
    device: torch.device
    stream: int | None


def _record_uses(kept: Iterable[_RetainedGrad]) -> None:
    """The current streams are ordered behind all reads of these gradients, which are dropped."""
    for grad, stream in kept:
        record_use(grad, stream)


def _version(param: Tensor) -> tuple[int, int, int]:
    """Of a DTensor and of its shard (writes to one are not counted by the other), and the number of its
    memory: new memory may have the old one's address.
    """
    here = local(param)
    number = here.untyped_storage()._cdata
    if param.is_inference():
        return -1, -1, number
    own = param._version
    return own, own if here is param else here._version, number


def _end(engine: Engine) -> None:
    with contextlib.suppress(_abi.OctavoError):  # nobody is left to hear of it
        engine.synchronize()
