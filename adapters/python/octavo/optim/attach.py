"""attach(): step() returns at once, and each module's forward waits for its own parameters.

Every module of the model with parameters in it has a gate, a hook before its forward. During a pass of the
model (the root) a gate lets the current stream wait for the parameters that its module owns, and with them
for those of the next modules, up to AHEAD bytes: the engine writes that much at once, and a wait costs the
host as much for many parameters as for one. Where the next module runs on another stream, its gate orders
that stream behind the one that has waited.

Everything else waits for all: a module that is called outside a pass of its root, evaluation, state_dict and
load_state_dict. At the beginning of a pass the root waits for parameters of modules that did not run in the
pass before: somebody else may use those (nn.MultiheadAttention its projection, a compiled graph everything in
it).

Hooks inside a compiled graph are traced: a gate there is a look at one attribute, and breaks the graph only
where something is pending. Graphs from before attach() have no hooks, so they are made anew. Copies and
pickles of a model have gates that do nothing.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .._engine import stream_of
from .._shards import is_sharded

if TYPE_CHECKING:
    from .offload import Offload
    from .plan import Member


AHEAD = 32 << 20


class Attachment:
    """The models that an optimizer is attached to."""

    def __init__(self, offload: Offload) -> None:
        self._offload = weakref.ref(offload)
        self._roots: list[Root] = []
        self._gates: dict[int, list[Gate]] = {}  # by the parameter's id
        self._told: tuple[Any, ...] = ()  # the order that the engine was told
        self._removable: list[Any] = []
        weakref.finalize(offload, _remove, self._removable)

    def add(self, model: nn.Module) -> None:
        if "torch._dynamo" in sys.modules:
            torch.compiler.reset()
        root = Root(self, model)
        self._roots.append(root)
        keep = self._removable.append
        keep(model.register_forward_hook(End(root)))
        for module in model.modules():
            if next(module.parameters(), None) is None:
                continue  # the host pays for every hook, and most modules are activations and the like
            gate = Gate(root)
            keep(
                module.register_forward_pre_hook(gate, prepend=True)
            )  # others may read weights (spectral_norm)
            keep(module.register_state_dict_pre_hook(All(root)))
            keep(module._register_load_state_dict_pre_hook(All(root)))
            for param in module.parameters(recurse=False):
                self._gates.setdefault(id(param), []).append(gate)
                gate.owns = True
                root.gates[gate] = None
        keep(model.register_forward_pre_hook(root, prepend=True))

    def defer(self, members: Iterable[Member]) -> None:
        """The weights of these are not up to date yet. Those that no gate is for are waited for now; so are
        shards, which FSDP2 gathers before their modules are called.
        """
        loose = []
        for m in members:
            gates = [] if is_sharded(m.param) else self._gates.get(id(m.param), [])
            if not gates:
                loose.append(m.handle)
            for gate in gates:
                if m.handle not in gate.handles:
                    gate.handles.add(m.handle)
                    gate.bytes += m.bytes
                    gate.devices.add(m.device)
                gate.pending = gate.root.waiting = True
                gate.root.active = False
        self.wait_for(loose)

    def wait(self) -> None:
        if (offload := self._offload()) is not None:
            offload.wait()
        self.waited()

    def wait_for(self, handles: Iterable[int]) -> None:
        if (offload := self._offload()) is not None:
            offload.wait_for(handles)

    def wait_below(self, module: nn.Module) -> None:
        """Waits for the parameters of a module and of all modules in it."""
        gates = [gate for param in module.parameters() for gate in self._gates.get(id(param), ())]
        self.wait_for({handle for gate in gates for handle in gate.handles})

    def waited(self) -> None:
        """Nothing is pending."""
        for root in self._roots:
            if root.waiting:
                root.waiting = False
                for gate in root.gates:
                    gate.pending, gate.bytes = False, 0
                    gate.handles.clear()
                    gate.devices.clear()

    def tell_order(self, members: list[Member]) -> None:
        """Parameters are updated in the order in which the next pass waits for them."""
        orders = [root.order() for root in self._roots]
        handles = {id(m.param): m.handle for m in members}
        if (orders, handles) == self._told:
            return
        self._told = (orders, handles)
        places = {gate: place for order in orders for place, gate in enumerate(order)}
        found = [
            (min(places[gate] for gate in gates), handles[number])
            for number, gates in self._gates.items()
            if number in handles
        ]
        if (offload := self._offload()) is not None:
            offload.engine.set_order([handle for _, handle in sorted(found)])


class _Hook:
    """What a model has of its optimizer. A copy of the model has nothing of it."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return nothing

    def __reduce__(self) -> Any:
        return _copied, ()


def _copied() -> Any:
    return nothing


def nothing(*args: Any) -> None:
    """The hooks of a copied model."""


class Root(_Hook):
    """Before a forward of the model that was attached."""

    def __init__(self, attachment: Attachment, model: nn.Module) -> None:
        self.attachment = attachment
        self.waiting = False  # for any weight
        self.active = False  # a pass is under way
        # Wrappers that read weights before the modules that own them are called.
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
        trains = module.training and torch.is_grad_enabled()
        if self.waiting and (not trains or self._ahead or _is_compiled(module)):
            self.attachment.wait()
        elif self.waiting:
            unseen = [h for gate in self.gates if gate not in self.ran for h in gate.handles]
            self.attachment.wait_for(unseen)
            for gate in self.gates:
                if gate not in self.ran:
                    gate.pending = False
        self._before, self.ran, self._last, self.active = self.ran, {}, None, True

    def passed(self, gate: Gate) -> None:
        """Notes the order of gates, for the next pass."""
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

    def order(self) -> list[Gate]:
        """Gates as a pass comes to them: first those that it waits for at its beginning."""
        ran = self.ran or self._before
        return [*(gate for gate in self.gates if gate not in ran), *ran]


class Gate(_Hook):
    """Before a module's forward."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.owns = False  # its module has parameters of its own
        self.pending = False  # any of `handles`
        self.handles: set[int] = set()  # of the module's own parameters
        self.bytes = 0  # of these
        self.devices: set[torch.device] = set()  # of these
        self.next: Gate | None = None  # in the pass before
        self.waited: tuple[torch.device, int] | None = None  # a stream, by a gate before this one

    def __call__(self, module: nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling():
            if self.pending:
                self.root.wait()
        else:
            self._pass(module)

    def _pass(self, module: nn.Module) -> None:
        root = self.root
        if self.owns and root.active:
            root.passed(self)
        if self.waited is not None:
            (device, stream), self.waited = self.waited, None
            if stream_of(device) != stream:
                _follow(device, stream)
        if not root.waiting:
            return
        if not root.active and not _in_backward():
            root.check_replica(module)
            root.attachment.wait()
        elif not module.training:
            # It may use its children's parameters without calling them.
            root.attachment.wait_below(module)
        elif self.pending:
            root.attachment.wait_for(self._and_next())

    def _and_next(self) -> list[int]:
        """Its handles and those of the gates that followed it in the pass before."""
        self.pending = False
        found, size, after = list(self.handles), self.bytes, self.next
        if len(self.devices) != 1:
            return found
        (device,) = self.devices
        stream = stream_of(device)
        while after is not None and after.pending and after.devices == self.devices:
            size += after.bytes
            if size > AHEAD:
                break
            after.pending = False
            after.waited = None if stream is None else (device, stream)
            found += after.handles
            after = after.next
        return found


def _follow(device: torch.device, stream: int) -> None:
    """Orders the device's current stream behind another one."""
    torch.cuda.current_stream(device).wait_stream(torch.cuda.ExternalStream(stream, device))


class End(_Hook):
    """After a forward of the model that was attached."""

    def __init__(self, root: Root) -> None:
        self.root = root

    def __call__(self, module: nn.Module, args: Any, result: Any) -> None:
        if not torch.compiler.is_compiling():
            self.root.active = False


class All(_Hook):
    """Before state_dict or load_state_dict of a module."""

    def __init__(self, root: Root) -> None:
        self.root = root

    def __call__(self, *args: Any) -> None:
        if self.root.waiting:
            self.root.wait()


def _in_backward() -> bool:
    """A module that is run again for its activations uses weights whose gradients are yet to come: their
    updates are not pending.
    """
    return int(torch._C._current_graph_task_id()) != -1


def _is_compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None


def _reads_ahead(module: nn.Module) -> bool:
    """nn.DataParallel copies all weights at its beginning, FSDP1 gathers those of later modules."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    sharded = None if fsdp is None else getattr(fsdp, "FullyShardedDataParallel", None)
    return isinstance(module, nn.DataParallel) or (sharded is not None and isinstance(module, sharded))


def _remove(removable: list[Any]) -> None:
    """A model may outlive its optimizer; the hooks must not."""
    for handle in removable:
        handle.remove()
