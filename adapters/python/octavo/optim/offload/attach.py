"""attach(): step() returns immediately, and each module's forward waits for the module's parameters.

Every module of the model that contains parameters has a gate, a hook before its forward. During a forward
pass of the model (the root) a gate makes the current stream wait for the parameters that its module owns, and
also for those of the next modules, up to AHEAD_BYTES bytes: the engine writes that many together, and a wait
costs the host the same time for many parameters as for one. If the next module runs on another stream, its
gate orders that stream after the one that has waited.

A module that is called outside a pass of its root waits for its own parameters and those of its submodules.
Evaluation, state_dict, load_state_dict and moving a module (`.to()`, `.half()`) wait for all. At the
beginning of a pass the root waits for parameters of modules that did not run in the pass before, because
another module may use them (nn.MultiheadAttention uses its projection's, a compiled graph those of all its
modules).

Reading a parameter by its name (`self.weight`) waits for it, too. So a forward without a gate
(`model.forward(x)`, or a module's weight in `F.linear`) has the weights of the last step.

Hooks inside a compiled graph are traced: a gate reads one attribute there, and breaks the graph only if
weights are pending. Graphs from before attach() have no hooks, so they are compiled again. Copies and pickles
of a model have gates that do nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Set
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..._engine import stream_of
from ..._shards import is_sharded

if TYPE_CHECKING:
    from ..roster import Member
    from .offloaded_steps import Offload


AHEAD_BYTES = 32 << 20

_NO_HANDLES: frozenset[int] = frozenset()
_NO_DEVICES: frozenset[torch.device] = frozenset()


class Attachment:
    """The models that an optimizer is attached to."""

    def __init__(self, offload: Offload) -> None:
        self._offload = weakref.ref(offload)
        self.lock = offload.lock
        self.roots: list[Root] = []
        self._gates: dict[int, list[Gate]] = {}  # by the parameter's id
        self._loose: set[int] = set()  # handles of pending weights that no gate waits for
        self._sent_order: tuple[Any, ...] = ()  # the order that the engine has
        self._removable: list[Any] = []
        weakref.finalize(offload, _remove, self._removable)

    def add(self, model: nn.Module) -> None:
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()
        _wait_before_moves()
        root = Root(self, model)
        self.roots.append(root)
        store = self.store_hook
        store(model.register_forward_hook(MethodHook(root.end_forward)))
        for module in model.modules():
            if next(module.parameters(), None) is None:
                continue  # every hook costs host time, and most modules have no parameters
            gate = Gate(root)
            # The gate comes first, because other hooks may read weights (spectral_norm).
            store(module.register_forward_pre_hook(gate, prepend=True))
            for register in (module.register_state_dict_pre_hook, module._register_load_state_dict_pre_hook):
                store(register(MethodHook(root.wait_if_pending)))
            for param in module.parameters(recurse=False):
                self._gates.setdefault(id(param), []).append(gate)
                gate.owns = True
                root.gates[gate] = None
            if gate.owns:
                store(_Watch(module, gate))
        store(model.register_forward_pre_hook(root, prepend=True))

    def store_hook(self, handle: Any) -> None:
        """Stores a hook that is removed with the optimizer."""
        self._removable.append(handle)

    def gated(self, members: Iterable[Member]) -> Gated:
        """Returns the gates of these members, and the members without gates. Shards have no gates, because
        FSDP2 gathers them before their modules are called.
        """
        by_gate: dict[Gate, list[Member]] = {}
        loose = []
        for m in members:
            gates = [] if is_sharded(m.param) else self._gates.get(id(m.param), [])
            if not gates:
                loose.append(m.handle)
            for gate in gates:
                by_gate.setdefault(gate, []).append(m)
        found = [
            (gate, frozenset(m.handle for m in some), sum(m.bytes for m in some), {m.device for m in some})
            for gate, some in by_gate.items()
        ]
        return Gated(len(self.roots), found, loose)

    def defer(self, gated: Gated) -> None:
        """Marks the weights of these gates as pending, until a wait."""
        for gate, handles, size, devices in gated.gates:
            if not gate.handles:
                gate.handles, gate.bytes, gate.devices = handles, size, devices
            elif handles - gate.handles:  # an earlier step's weights are pending, too
                gate.handles, gate.bytes = gate.handles | handles, gate.bytes + size
                gate.devices = gate.devices | devices
            gate.pending = True
        self._loose.update(gated.loose)
        for root in self.roots:
            root.waiting, root.active = True, False

    def wait_for_loose(self) -> None:
        """Waits for the weights that no gate waits for."""
        if self._loose:
            self.wait_for(self._loose)
            self._loose.clear()

    def wait(self) -> None:
        if (offload := self._offload()) is not None:
            offload.wait()

    def wait_for(self, handles: Iterable[int]) -> None:
        if (offload := self._offload()) is not None:
            offload.wait_for(handles)

    def wait_below(self, module: nn.Module) -> None:
        """Waits for the parameters of a module and of all modules in it."""
        gates = [gate for param in module.parameters() for gate in self._gates.get(id(param), ())]
        self.wait_for({handle for gate in gates for handle in gate.handles})

    def clear_pending(self) -> None:
        """Notes that no weight is pending."""
        self._loose.clear()
        for root in self.roots:
            if root.waiting:
                for gate in root.gates:
                    gate.pending, gate.bytes = False, 0
                    gate.handles, gate.devices = _NO_HANDLES, _NO_DEVICES
                root.waiting = False

    def set_update_order(self, members: list[Member]) -> None:
        """Makes the engine update parameters in the order in which the next pass waits for them."""
        orders = [root.order() for root in self.roots]
        handles = {id(m.param): m.handle for m in members}
        if (orders, handles) == self._sent_order:
            return
        places = {gate: place for order in orders for place, gate in enumerate(order)}
        found = [
            (min(places[gate] for gate in gates), handles[number])
            for number, gates in self._gates.items()
            if number in handles
        ]
        if (offload := self._offload()) is not None:
            offload.engine.set_order([handle for _, handle in sorted(found)])
        self._sent_order = (orders, handles)


@dataclasses.dataclass(slots=True)
class Gated:
    """The gates of a step's members, and the handles, bytes and devices that each of them waits for."""

    roots: int  # how many there were
    gates: list[tuple[Gate, frozenset[int], int, Set[torch.device]]]
    loose: list[int]  # handles that no gate waits for


class _Hook:
    """A hook of an attached model. A copy of the model gets a hook that does nothing."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return nothing

    def __reduce__(self) -> Any:
        return _copied, ()


def _copied() -> Any:
    return nothing


def nothing(*args: Any) -> None:
    """Does nothing: the hook of a copied model."""


class MethodHook(_Hook):
    """A hook that calls a method of the root."""

    def __init__(self, method: Callable[[], None]) -> None:
        self.method = method

    def __call__(self, *args: Any) -> None:
        self.method()


class Root(_Hook):
    """The hook before a forward of the attached model."""

    def __init__(self, attachment: Attachment, model: nn.Module) -> None:
        self.attachment = attachment
        self.waiting = False  # whether any weight is pending
        self.active = False  # a pass is under way
        # A wrapper may read weights before it calls the modules that own them.
        self._ahead = any(map(_reads_ahead, model.modules()))
        self.gates: dict[Gate, None] = {}  # of modules that own parameters
        self.ran: dict[Gate, None] = {}  # in this pass, in their order
        self._before: dict[Gate, None] = {}
        self._last: Gate | None = None  # that ran

    def __call__(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            if self.waiting:
                self.wait()
        else:
            self._begin(module)

    def _begin(self, module: nn.Module) -> None:
        self.check_replica(module)
        if self.waiting:
            with self.attachment.lock:
                self._wait(module)
        self._before, self.ran, self._last, self.active = self.ran, {}, None, True

    def _wait(self, module: nn.Module) -> None:
        trains = module.training and torch.is_grad_enabled()
        if not trains or self._ahead or _is_compiled(module):
            self.attachment.wait()
            return
        self.attachment.wait_for_loose()
        ran = self.ran
        unseen = [gate for gate in self.gates if gate not in ran]
        self.attachment.wait_for([h for gate in unseen for h in gate.handles])
        for gate in unseen:
            gate.pending = False

    def record_gate(self, gate: Gate) -> None:
        """Notes the order of gates for the next pass."""
        self.ran[gate] = None
        if self._last is not None:
            self._last.next = gate
        self._last = gate

    def check_replica(self, module: nn.Module) -> None:
        if self.waiting and getattr(module, "_is_replica", False):
            raise RuntimeError(
                f"{type(module).__name__}: nn.DataParallel has copied weights that the last step has not "
                "written yet; attach the DataParallel model itself, or call wait() after step()"
            )

    @torch._disable_dynamo
    def wait(self) -> None:
        self.attachment.wait()

    def wait_if_pending(self) -> None:
        """Called before state_dict and load_state_dict of a module."""
        if self.waiting:
            self.wait()

    def end_forward(self) -> None:
        """Called after a forward of the model."""
        if not torch.compiler.is_compiling():
            self.active = False

    def order(self) -> list[Gate]:
        """Returns the gates in the order of a pass: first those that it waits for at its beginning."""
        ran = list(self.ran) or list(self._before)  # copies: another thread may be in a forward
        seen = set(ran)
        return [*(gate for gate in self.gates if gate not in seen), *ran]


class Gate(_Hook):
    """The hook before a module's forward."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.owns = False  # whether its module owns parameters
        self.pending = False  # whether any of `handles` is
        self.handles = _NO_HANDLES  # of the module's own parameters
        self.bytes = 0  # of these
        self.devices: Set[torch.device] = _NO_DEVICES  # of these
        self.next: Gate | None = None  # the next gate in the pass before
        self.waited: tuple[torch.device, int] | None = None  # the stream on which an earlier gate has waited

    def __call__(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            if self.pending:
                self.root.wait()
        else:
            self._pass(module)

    def _pass(self, module: nn.Module) -> None:
        root = self.root
        if self.owns and root.active:
            root.record_gate(self)
        if self.waited is not None:
            (device, stream), self.waited = self.waited, None
            if stream_of(device) != stream:
                _follow(device, stream)
        # `pending` becomes false only after the wait, so most gates need no lock.
        if root.waiting and (self.pending or not root.active or not module.training):
            with root.attachment.lock:
                self._wait(module)

    def _wait(self, module: nn.Module) -> None:
        root = self.root
        if not root.active and not _in_backward():
            root.check_replica(module)
            if module.training and torch.is_grad_enabled():
                root.attachment.wait_below(module)
            else:
                root.attachment.wait()
        elif not module.training:
            # It may use its submodules' parameters without calling them.
            root.attachment.wait_below(module)
        elif self.pending:
            self._wait_for_next()

    def wait_for_read(self) -> None:
        """Waits because a parameter of the module is about to be read."""
        if torch.compiler.is_compiling():
            self.root.wait()
            return
        with self.root.attachment.lock:
            self.root.attachment.wait_for(self.handles)
            self.pending = False

    def _wait_for_next(self) -> None:
        """Waits for its handles and for those of the next gates in the pass before."""
        gates, size, after = {self: None}, self.bytes, self.next
        device = next(iter(self.devices)) if len(self.devices) == 1 else None
        while device is not None and after is not None and after.pending and after not in gates:
            size += after.bytes
            if size > AHEAD_BYTES or after.devices != self.devices:
                break
            gates[after] = None
            after = after.next
        self.root.attachment.wait_for([handle for gate in gates for handle in gate.handles])
        stream = None if device is None else stream_of(device)
        for gate in gates:
            gate.pending = False
            if gate is not self and device is not None and stream is not None:
                gate.waited = (device, stream)


class _Watch:
    """Calls a module's gate when a parameter of the module is read by its name, until remove()."""

    def __init__(self, module: nn.Module, gate: Gate) -> None:
        self._module, self._gate = weakref.ref(module), gate
        own = module._parameters
        if not isinstance(own, Parameters):
            module.__dict__["_parameters"] = own = Parameters(own)
        own.gates = (*own.gates, gate)

    def remove(self) -> None:
        module = self._module()
        own = None if module is None else module._parameters
        if module is not None and isinstance(own, Parameters):
            own.gates = tuple(gate for gate in own.gates if gate is not self._gate)
            if not own.gates:
                module.__dict__["_parameters"] = dict(own)


class Parameters(dict):  # type: ignore[type-arg]
    """A module's parameters by name: `module.weight` reads it. Copies and pickles are plain dictionaries."""

    gates: tuple[Gate, ...] = ()

    def __getitem__(self, name: Any) -> Any:
        for gate in self.gates:
            if gate.pending:
                gate.wait_for_read()
        return dict.__getitem__(self, name)

    def wait(self) -> None:
        """Waits for the parameters of all modules of the models."""
        for gate in self.gates:
            if gate.root.waiting:
                gate.root.wait()

    def __reduce__(self) -> Any:
        self.wait()
        return dict, (dict(self),)


@functools.cache
def _wait_before_moves() -> None:
    """Makes every attached module wait before it is moved or converted. torch has no hook for this: to(),
    half() and others call `_apply`, which replaces memory that a step still writes.
    """
    apply = nn.Module._apply

    @functools.wraps(apply)
    def waiting(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if isinstance(own := self.__dict__.get("_parameters"), Parameters):
            own.wait()
        return apply(self, *args, **kwargs)

    nn.Module._apply = waiting  # type: ignore[method-assign]


def _follow(device: torch.device, stream: int) -> None:
    """Orders the device's current stream after another one."""
    torch.cuda.current_stream(device).wait_stream(torch.cuda.ExternalStream(stream, device))


def _in_backward() -> bool:
    """Returns whether a backward pass is running. A module that recomputes its activations there uses weights
    that are not pending, because their gradients are not complete.
    """
    return int(torch._C._current_graph_task_id()) != -1


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _reads_ahead(module: nn.Module) -> bool:
    """Returns True for nn.DataParallel, which copies all weights first, and FSDP1, which gathers ahead."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    sharded = None if fsdp is None else getattr(fsdp, "FullyShardedDataParallel", None)
    return isinstance(module, nn.DataParallel) or (sharded is not None and isinstance(module, sharded))


def _remove(removable: list[Any]) -> None:
    """Removes the hooks with the optimizer, because the model may live longer."""
    for handle in removable:
        handle.remove()
