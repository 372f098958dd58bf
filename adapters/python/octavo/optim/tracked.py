"""optimizer.state as dictionaries that know what others may have done to them.

They count the changes made to them: a step that finds the count it knows need not look for every tensor of
every state again. An entry also knows whether anybody outside has got a tensor of it. Only then can somebody
have written into one, and a step compares the tensors' versions. Parameters that step together share one step
count; whoever is given a count gets one of that parameter alone, which the steps keep up to date.

They are dictionaries to everybody else, and plain ones in copies and pickles. Changes that bypass the
dictionaries (a tensor's own .data) are not counted, so a step reads the address of every tensor.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from .._codec import NATIVE_STEP, SCALE, STEP


class Holder(Protocol):
    def let_go(self) -> None: ...


class Changes:
    """A count that the states of an optimizer share, and who is to be told of the next change: whoever holds
    tensors of a state lets go of them then, since who takes a state away wants its memory.
    """

    def __init__(self) -> None:
        self.count = 0
        self.captured = False  # a CUDA graph advances the shared step counts, and no others
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()

    def tell(self, holder: Holder) -> None:
        self._holders.add(holder)

    def note(self) -> None:
        self.count += 1
        if self._holders:
            for holder in self._holders:
                holder.let_go()
            self._holders.clear()


@dataclasses.dataclass(slots=True, eq=False)
class Mirror:
    """One parameter's own step count, and the shared one that it repeats."""

    own: Tensor
    of: Tensor
    version: int

    def repeats(self, count: Tensor) -> bool:
        """Whether it still says what `count` says: nobody has written to it."""
        return self.of is count and self.own._version == self.version


class _Counting:
    changes: Changes

    # dict's own would put values in past __setitem__.
    def setdefault(self: Any, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self: Any, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __ior__(self: Any, other: Any) -> Any:
        self.update(other)
        return self


def _counted(name: str) -> Callable[..., Any]:
    plain = getattr(dict, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.changes.note()
        return plain(self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = plain.__doc__
    return method


for _name in ("__delitem__", "pop", "popitem", "clear"):
    setattr(_Counting, _name, _counted(_name))


def _handing(name: str) -> Callable[..., Any]:
    plain = getattr(dict, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.hand_out()
        return plain(self, *args, **kwargs)

    method.__name__ = name
    method.__doc__ = plain.__doc__
    return method


class Entry(_Counting, dict):  # type: ignore[type-arg]
    """The state of one parameter. `kind` is how it is stored, once that is known.

    "step" finds the count under either of its names. The optimizer itself goes through plain() and replace().
    """

    items = _handing("items")
    values = _handing("values")
    copy = _handing("copy")
    __or__ = _handing("__or__")
    __ror__ = _handing("__ror__")

    def __init__(self, items: Mapping[Any, Any], changes: Changes | None = None) -> None:
        super().__init__(items.plain() if isinstance(items, Entry) else items)
        self.changes = Changes() if changes is None else changes
        self.kind: Any = getattr(items, "kind", None)
        self.handed: bool = getattr(items, "handed", False)
        self.mirror: Mirror | None = getattr(items, "mirror", None)
        self._versions: dict[Any, int] = {}
        self._rename()
        self.seen()

    # --- For the optimizer ---

    def plain(self) -> dict[str, Any]:
        """The entry as a dictionary of its own, with the count under "step". Hands nothing out."""
        return {STEP if key == NATIVE_STEP else key: value for key, value in dict.items(self)}

    def replace(self, items: Mapping[str, Any]) -> None:
        """Takes over what the optimizer has made of plain()."""
        own = self.plain()
        if own.keys() != items.keys() or any(own[key] is not items[key] for key in own):
            self.changes.note()
            dict.clear(self)
            dict.update(self, items)
            self._rename()
        self.seen()

    def hand_out(self) -> None:
        """Somebody outside is given the tensors."""
        if self.handed:
            return
        self.handed = True
        count = dict.get(self, self._real(STEP))
        if isinstance(count, Tensor) and not self.changes.captured:
            self.own_count(count)
        self.seen()
        self.changes.note()

    def own_count(self, shared: Tensor) -> None:
        """A step count of this parameter alone, which the steps of `shared` bring up to date."""
        key = self._real(STEP)
        if dict.get(self, key) is shared or dict.__getitem__(self, key).is_inference():
            with torch.inference_mode(False):  # whoever asks in it: writes to such a tensor are not counted
                dict.__setitem__(self, key, shared.detach().clone())
        own = dict.__getitem__(self, key)
        self.mirror = Mirror(own, shared, own._version)

    def count(self) -> Any:
        """The step count: the shared one where the entry's own only repeats it."""
        mirror, count = self.mirror, dict.get(self, self._real(STEP))
        return (
            mirror.of if mirror is not None and mirror.own is count and mirror.repeats(mirror.of) else count
        )

    def owns(self, count: Tensor) -> bool:
        """Whether somebody outside has got `count` as this parameter's."""
        return self._has_own and dict.get(self, self._real(STEP)) is count

    @property
    def _has_own(self) -> bool:
        return self.handed and (self.mirror is not None or not self.changes.captured)

    def count_with(self, shared: Tensor) -> None:
        """From now on the steps of `shared` are this parameter's; both say the same now."""
        if self._has_own:
            self.own_count(shared)
        elif dict.get(self, self._real(STEP)) is not shared:
            self.changes.note()
            dict.__setitem__(self, self._real(STEP), shared)

    def counts(self, shared: Tensor) -> bool:
        """Whether the entry's step count is `shared`, or says the same."""
        if self.mirror is not None:
            return dict.get(self, self._real(STEP)) is self.mirror.own and self.mirror.repeats(shared)
        return dict.get(self, self._real(STEP)) is shared

    def seen(self) -> None:
        """The tensors are known as they are now."""
        if self.handed:
            tensors = self.watched()
            self._versions = {key: tensor._version for key, tensor in tensors.items()}

    def watched(self) -> dict[Any, Tensor]:
        """The tensors, without the count, whose writes torch counts."""
        return {
            key: value
            for key, value in dict.items(self)
            if isinstance(value, Tensor) and key not in (STEP, NATIVE_STEP) and not value.is_inference()
        }

    def rewritten(self) -> list[str]:
        """Moments whose codes somebody has written to, and their scales not."""
        if not self.handed:
            return []
        now = {key: tensor._version for key, tensor in self.watched().items()}
        changed = {key for key, version in now.items() if self._versions.get(key, version) != version}
        return [key for key in changed if key + SCALE in self and key + SCALE not in changed]

    def _rename(self) -> None:
        """The count has our own name beside codes."""
        native = any(isinstance(key, str) and key.endswith(SCALE) for key in self)
        wrong, right = (STEP, NATIVE_STEP) if native else (NATIVE_STEP, STEP)
        if dict.__contains__(self, wrong):
            dict.__setitem__(self, right, dict.pop(self, wrong))

    def _real(self, key: Any) -> Any:
        return NATIVE_STEP if key == STEP and dict.__contains__(self, NATIVE_STEP) else key

    # --- For everybody else ---

    def __iter__(self) -> Iterator[Any]:  # its own, so that dict(entry) asks for each value
        return dict.__iter__(self)

    def __contains__(self, key: Any) -> bool:
        return dict.__contains__(self, self._real(key))

    def __getitem__(self, key: Any) -> Any:
        self.hand_out()
        return dict.__getitem__(self, self._real(key))

    def get(self, key: Any, default: Any = None) -> Any:
        self.hand_out()
        return dict.get(self, self._real(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.changes.note()
        key = self._real(key)
        if key in (STEP, NATIVE_STEP):  # somebody's own
            self.handed, self.mirror = True, None
            self.seen()
        dict.__setitem__(self, key, value)
        self._rename()
        if self.handed and isinstance(value, Tensor) and not value.is_inference():
            self._versions[key] = value._version

    def __delitem__(self, key: Any) -> None:
        self.changes.note()
        dict.__delitem__(self, self._real(key))

    def pop(self, key: Any, *default: Any) -> Any:
        self.hand_out()
        self.changes.note()
        return dict.pop(self, self._real(key), *default)

    def popitem(self) -> tuple[Any, Any]:
        self.hand_out()
        self.changes.note()
        return dict.popitem(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (), None, None, iter(list(dict.items(self)))


class States(_Counting, defaultdict):  # type: ignore[type-arg]
    """The states of all parameters. A dictionary that is put in becomes an Entry."""

    def __init__(self, items: Mapping[Any, Any] | None = None) -> None:
        super().__init__(dict)
        self.changes = Changes()
        for key, value in (items or {}).items():
            self[key] = value

    def __setitem__(self, key: Any, value: Any) -> None:
        self.changes.note()
        if isinstance(value, dict) and getattr(value, "changes", None) is not self.changes:
            value = Entry(value, self.changes)
        dict.__setitem__(self, key, value)

    def __missing__(self, key: Any) -> Any:
        self[key] = {}
        return self[key]

    # defaultdict's own would call States with two arguments.
    def copy(self) -> defaultdict[Any, Any]:
        return defaultdict(dict, self)

    __copy__ = copy

    def __or__(self, other: Any) -> Any:
        return self.copy() | other if isinstance(other, dict) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return other | self.copy() if isinstance(other, dict) else NotImplemented

    def __reduce__(self) -> tuple[Any, ...]:
        return defaultdict, (dict,), None, None, iter(self.items())
