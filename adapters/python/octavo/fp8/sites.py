"""Sites: the states of delayed scaling of a weight, and the codes of its current values.

A site is found by the weight's memory, so all uses of a weight, and all views with the same start, share one
site. A site lives as long as this memory, or as long as a Linear holds it, because weights may move.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from .._shards import local
from .arenas import Arena, ArenaKey, Lease, arena
from .devices import captured_on, capturing
from .layer_cache import DGRAD, FORWARD, Layer, W
from .recipe import Recipe
from .steps import clock


class WeightCodes(NamedTuple):
    """Codes of a weight, and the state of the weight that they were cast from."""

    made_from: tuple[object, ...]
    passes: int
    memory: Tensor | None
    codes: int  # addresses
    transposed: int


_NO_CODES = WeightCodes((), 0, None, 0, 0)


_numbers = itertools.count()


class Site:
    def __init__(self) -> None:
        self.number = next(_numbers)  # sites are created in the same order on all ranks
        self.used = False
        self.waits = False  # the backward pass of the last forward pass is pending
        self.owner: weakref.ref[Any] | None = None  # the optimizer whose step ends this site's steps
        self.recipe: Recipe | None = None  # the recipe of the last forward pass
        self.decisions: dict[str, int] = {}  # of `select: measure`, by shape
        self.casts = 0  # how often the weight was cast
        self.made: dict[Any, Any] = {}  # prepared calls of matmul, by kind of call
        self.lease: Lease | None = None
        self._loaded: Tensor | None = None  # states of a checkpoint, until the first use
        self._kept: dict[object, WeightCodes] = {}

    def state(self, key: ArenaKey | None) -> int:
        """Returns the address of the states of x, w and dy; 0 if the recipe has none."""
        if key is None:
            return 0
        lease = self.lease
        if lease is None or lease.arena.key != key:
            lease = self._move(arena(key))
        return lease.address

    # Tensors that are created in inference mode cannot be written by training later.
    @torch.inference_mode(False)
    @torch.no_grad()
    def _move(self, to: Arena) -> Lease:
        """Leases states for a first use, another device or recipe, and copies the history that fits."""
        if capturing(to.key.device):
            raise RuntimeError(
                "fp8: a weight is used for the first time while a CUDA graph is captured, and each replay "
                "would reset its scales: run the model once before the capture"
            )
        lease, before = to.lease(), self.states
        if before is not None:
            many = min(lease.states.shape[1], before.shape[1])
            lease.states[:, :many] = before[:, :many].to(lease.states.device)
        self._close()
        self.lease = lease
        return lease

    def reduces(self) -> bool:
        """Returns True if ranks share the site's maxima. All ranks must end the same sites, even if one had
        no backward pass.
        """
        return self.lease is not None and self.lease.arena.reduces()

    def codes(
        self, layer: Layer, weight: Tensor, state: int, training: bool, stream: int | None
    ) -> WeightCodes:
        """Returns the weight's codes for the layer's passes. Casts it if its values may have changed."""
        passes = layer.passes & (FORWARD | DGRAD)
        if not passes:
            return _NO_CODES
        version = 0 if weight.is_inference() else weight._version
        # Another stream would not wait for the cast. An evaluation may have used other values (averages of
        # weights), by writes that torch does not count.
        made_from = (clock.epoch, version, weight.data_ptr(), state, training, stream)
        # A graph replays its own cast, with the weight's values at that time.
        captured = captured_on(stream)
        kept = None if captured or clock.captured else self._kept.get(layer.weight_key)
        if kept is not None and kept.made_from == made_from and kept.passes & passes == passes:
            return kept
        made = WeightCodes(made_from, passes, *layer.empty_pair(W))
        layer.cast(W, weight, made.codes, made.transposed, state, True, stream)
        self.casts += 1
        if not captured:
            self._kept[layer.weight_key] = made
        return made

    @property
    def states(self) -> Tensor | None:
        """[3, 2 + length]: two scales and the history of each of x, w and dy."""
        return self._loaded if self.lease is None else self.lease.states

    @torch.no_grad()
    def load(self, states: Tensor | None, decisions: dict[str, int]) -> None:
        self.decisions = dict(decisions)
        self._kept, self.made = {}, {}
        if states is not None and self.lease is not None and self.lease.states.shape == states.shape:
            self.lease.states.copy_(states)  # a captured graph has the address
            return
        self._close()
        self._loaded = states

    def _close(self) -> None:
        self.lease = self._loaded = None
        self._kept = {}

    def __getstate__(self) -> dict[str, object]:
        """A copy gets separate states."""
        states = self.states
        kept = None if states is None else states.detach().cpu().clone()
        return {"states": kept, "decisions": self.decisions, "recipe": self.recipe}

    def __setstate__(self, saved: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.recipe = saved["recipe"]
        self.load(saved["states"], saved["decisions"])


_Key = tuple[int, int]
# While a weak reference exists, the address of its storage is not used again.
_sites: dict[_Key, tuple[StorageWeakRef, Site]] = {}
_lock = threading.Lock()
_generation = 0  # the number of sites that were added so far


def generation() -> int:
    return _generation


def all_sites() -> list[Site]:
    """Returns the sites of all weights whose memory still exists."""
    with _lock:
        return [site for memory, site in _sites.values() if not memory.expired()]


def of_parameters(params: Iterable[Tensor]) -> list[Site]:
    """Returns the sites of the weights in the memory of these parameters."""
    ranges: dict[int, list[tuple[int, int]]] = {}
    for param in map(local, params):
        try:
            storage, begin = _key(param)
        except (RuntimeError, NotImplementedError):  # a tensor subclass without memory
            continue
        last = sum((size - 1) * stride for size, stride in zip(param.shape, param.stride(), strict=True))
        ranges.setdefault(storage, []).append((begin, begin + last))
    with _lock:
        return [
            site
            for (storage, offset), (memory, site) in _sites.items()
            if not memory.expired() and any(a <= offset <= b for a, b in ranges.get(storage, ()))
        ]


def _key(weight: Tensor) -> _Key:
    return weight.untyped_storage()._cdata, weight.storage_offset()


def find(weight: Tensor) -> Site | None:
    found = _sites.get(_key(weight))
    return None if found is None else found[1]


def site_of(weight: Tensor, own: Site | None = None) -> Site:
    """Returns the weight's site. If its memory has none: `own`, whose weight has moved, or a new one."""
    found = _sites.get(_key(weight))
    return found[1] if found is not None else _add(weight, own)


def _add(weight: Tensor, own: Site | None) -> Site:
    global _generation
    with _lock:
        found = _sites.get(_key(weight))
        if found is not None:  # another thread added it
            return found[1]
        # A module whose weight has moved may still hold the site of expired memory.
        for key in [key for key, (memory, _) in _sites.items() if memory.expired()]:
            del _sites[key]
        site = own or Site()
        _generation += 1
        _sites[_key(weight)] = (StorageWeakRef(weight.untyped_storage()), site)
        return site
