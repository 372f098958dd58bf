"""Steps of states in host memory: gradients that are taken there, and who waits for what.

The engine has queues of its own that read gradients and write parameters and states, also after a call has
returned. What they use is kept alive here until the current stream, or the host, has waited for them.
"""

from __future__ import annotations

import array
import collections
import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .. import _abi
from .._engine import GRADIENTS, HOST, TO_DEVICE, TO_HOST, WEIGHTS, Engine, stream_of
from .._shards import local
from .attach import Attachment
from .host_states import HostStates
from .offload_options import Options
from .register import tell

if TYPE_CHECKING:
    from .base import Optimizer
    from .plan import Chosen, Member

_WAYS = {"to_host": TO_HOST, "to_device": TO_DEVICE}
# Gradients that queues still read: with more, the current stream waits for the oldest.
KEPT = 128 << 20


class Offload(HostStates):
    """What an optimizer with states in host memory has beyond others."""

    def __init__(self, optimizer: Optimizer, options: Options) -> None:
        super().__init__(optimizer, options)
        # Autograd has a thread per device, in which hooks and gates are called.
        self.lock = threading.RLock()
        self.engine: Engine = optimizer._engine
        self.attached: Attachment | None = None
        self.held: set[int] = set()  # handles whose gradients are in host memory
        # Handles whose weights no stream was ordered behind, and their devices.
        self.pending: dict[int, torch.device] = {}
        self._busy = False  # queues may be at work
        self._versions: dict[int, tuple[int, int]] = {}  # of parameters whose copies are up to date
        self._read: dict[int, _Kept] = {}  # gradients of steps that are pending, by handle
        self._queue: collections.deque[_Read] = collections.deque()  # others, in the order of their reads
        self._queued = 0  # bytes
        self._alive: dict[int, list[Any]] = {}  # what else pending steps read, by handle
        # Whatever the queues use is still there when this is called.
        weakref.finalize(optimizer, _end, self.engine)

    # --- Gradients --------------------------------------------------------------------------------

    def take(self, params: list[Tensor]) -> None:
        """Gradients of parameters of one device go to host memory, and the parameters have none."""
        optimizer = self._known()
        chosen, grads = optimizer.choose(params)
        given, device = (chosen.handles_at, chosen.grads_at, chosen.dtype_numbers), chosen.members[0].device
        self._busy = True
        tell(optimizer, lambda: self.engine.take(*given, device))
        for param in params:
            param.grad = None
        self.held.update(m.handle for m in chosen.members)
        self._keep([m.handle for m in chosen.members], grads, device)

    def take_second(self, members: Iterable[Member]) -> None:
        """Gradients that came by another way than those that are in host memory already."""
        by_device: dict[torch.device, list[Tensor]] = {}
        for m in members:
            if m.handle in self.held and m.param.grad is not None:
                by_device.setdefault(m.device, []).append(m.param)
        for params in by_device.values():
            self.take(params)

    def flags(self, members: Sequence[Member], given: list[Any]) -> list[Any]:
        """Which of them have a gradient: 1 on the device, 2 in host memory."""
        held = self.held
        return [1 if g is not None else 2 * (m.handle in held) for m, g in zip(members, given, strict=True)]

    def drop(self) -> None:
        """Forgets the gradients in host memory."""
        if self.held:
            self.engine.drop()
            self.held.clear()

    def registered(self, members: Iterable[Member]) -> None:
        """The engine was told of them anew, and may have no copies of them."""
        for m in members:
            self._versions.pop(m.handle, None)

    def removed(self, handles: Iterable[int]) -> None:
        """The engine is to forget them; nothing is under way."""
        for handle in handles:
            self.held.discard(handle)
            self.pending.pop(handle, None)
            self._alive.pop(handle, None)
            self._versions.pop(handle, None)

    def check_kept(self, member: Member) -> None:
        """RuntimeError where the engine is to forget a parameter whose gradient it has."""
        if member.handle in self.held:
            raise RuntimeError(
                "its memory has moved since the backward pass, and offload_gradients has its gradient for "
                "the old one; move parameters before a backward pass or after step(), or call zero_grad() now"
            )

    # --- Steps ------------------------------------------------------------------------------------

    def attach(self, model: nn.Module) -> None:
        if self.attached is None:
            self.attached = Attachment(self)
        self.attached.add(model)

    def defers(self, release: bool) -> bool:
        """Whether the next step returns before the current stream is ordered behind it."""
        return release or self.attached is not None

    def before(self, chosen: Chosen, release: bool) -> None:
        """Copies parameters that somebody else has written since the step before; says in which order the
        next forward pass needs them.
        """
        if self.attached is not None and not release:
            registered = self._known()._roster.registered()
            self.attached.tell_order([m for m in registered if self.is_away(m)])
        stale: dict[torch.device, list[int]] = {}
        for m in self._of(chosen).on_host:
            if _version(m.param) != self._versions.get(m.handle):
                stale.setdefault(m.device, []).append(m.handle)
        for device, handles in stale.items():
            self.engine.refresh(handles, TO_HOST, device)

    def after(self, chosen: Chosen, grads: Sequence[Tensor], alive: list[Any], release: bool) -> None:
        """A step was queued, and the parameters' versions are counted up."""
        self._busy = True
        places = self._of(chosen)
        self.held.difference_update(places.devices)
        for m in places.on_host:
            self._versions[m.handle] = _version(m.param)
        if not release and (self.attached is not None or self.options.offload_gradients):
            for param in chosen.params:
                param.grad = None
        if not self.defers(release):
            self._forget_reads()  # the current stream is behind all of them
        if not self.defers(release) or not places.away:
            return
        self.pending.update(places.devices)
        before = [self._alive[handle] for handle in places.devices if handle in self._alive]
        kept = [*alive, *before]
        for handle in places.devices:
            self._alive[handle] = kept
        there = [
            (m, grad) for m, grad, away in zip(chosen.here, grads, places.here_away, strict=True) if away
        ]
        if release and there:
            self._keep([m.handle for m, _ in there], [grad for _, grad in there], there[0][0].device)
        elif there:
            streams = {device: stream_of(device) for device in set(places.devices.values())}
            self._read.update({m.handle: (grad, streams[m.device]) for m, grad in there})
        if self.attached is not None:
            self.attached.defer(places.away)

    def _of(self, chosen: Chosen) -> _Places:
        if chosen.places is None:
            chosen.places = _Places(chosen, self)
        found: _Places = chosen.places
        return found

    def _keep(self, handles: Sequence[int], grads: Sequence[Tensor], device: torch.device) -> None:
        """Keeps gradients until they were read: in stream order, once there are too many."""
        size = sum(grad.nbytes for grad in grads)
        self._queue.append(_Read(array.array("I", handles), list(grads), size, device, stream_of(device)))
        self._queued += size
        while self._queued > KEPT:
            oldest = self._queue.popleft()
            self._queued -= oldest.bytes
            self.engine.wait(oldest.handles, GRADIENTS, oldest.device)
            _let_go([(grad, oldest.stream) for grad in oldest.grads])

    # --- Waiting ----------------------------------------------------------------------------------

    def wait(self) -> None:
        """Orders the current stream of every device behind all weights."""
        with self.lock:
            for device in self._devices():
                self.engine.wait(None, WEIGHTS, device)
                if self._queue:
                    self.engine.wait(None, GRADIENTS, device)
            self.pending.clear()
            self._forget_reads()

    def _forget_reads(self) -> None:
        """The current streams are behind everything that queues read."""
        _let_go([*self._read.values(), *((grad, read.stream) for read in self._queue for grad in read.grads)])
        self._read, self._alive, self._queued = {}, {}, 0
        self._queue.clear()
        if self.attached is not None:
            self.attached.waited()

    def wait_for(self, handles: Iterable[int]) -> None:
        """The same for those of these weights that are pending."""
        by_device: dict[torch.device, list[int]] = {}
        with self.lock:
            for handle in set(handles):
                if (device := self.pending.get(handle)) is not None:
                    by_device.setdefault(device, []).append(handle)
            for device, some in by_device.items():
                self.engine.wait(array.array("I", some), WEIGHTS, device)
                for handle in some:
                    del self.pending[handle]
                    self._alive.pop(handle, None)
                _let_go([self._read.pop(handle) for handle in some if handle in self._read])
            if by_device and not self.pending and not self.held:
                self._forget_reads()

    def settle(self) -> None:
        """The host waits until nothing is under way: states may be read and written."""
        if self._busy:
            self.engine.synchronize()
            self._busy = False

    def sync_params(self, way: str) -> None:
        if way not in _WAYS:
            raise ValueError(f"Invalid way: {way!r}, expected 'to_host' or 'to_device'")
        self.wait()
        self._busy = True
        for device in self._devices():
            self.engine.refresh((), _WAYS[way], device)
        for m in self._known()._roster.registered():
            if self.residence(m) == HOST:
                self._versions[m.handle] = _version(m.param)

    def _devices(self) -> list[torch.device]:
        return list(self._known()._sides.sides)


class _Places:
    """Where the states of a step's members are. Whoever is registered anew is chosen anew."""

    def __init__(self, chosen: Chosen, states: HostStates) -> None:
        self.away = [m for m in chosen.members if states.is_away(m)]
        self.on_host = [m for m in self.away if states.residence(m) == HOST]
        self.devices = {m.handle: m.device for m in self.away}  # by handle
        self.here_away = [states.is_away(m) for m in chosen.here]


_Kept = tuple[Tensor, "int | None"]  # a gradient, and the stream that it was made on


@dataclasses.dataclass(slots=True)
class _Read:
    """Gradients that a queue reads."""

    handles: array.array[int]
    grads: list[Tensor]
    bytes: int
    device: torch.device
    stream: int | None


def _let_go(kept: Iterable[_Kept]) -> None:
    """The current streams are behind all reads of these gradients. Their memory goes back to the stream that
    has made them, which may be another one.
    """
    for grad, stream in kept:
        if stream is not None and stream != stream_of(grad.device):
            grad.record_stream(torch.cuda.current_stream(grad.device))


def _version(param: Tensor) -> tuple[int, int]:
    """Of a DTensor and of its shard: writes to one are not counted by the other."""
    own, here = (-1 if tensor.is_inference() else tensor._version for tensor in (param, local(param)))
    return own, here


def _end(engine: Engine) -> None:
    with contextlib.suppress(_abi.OctavoError):  # nobody is left to hear of it
        engine.synchronize()
