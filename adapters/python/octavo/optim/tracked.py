"""optimizer.state as dictionaries that count the changes made to them: a step that finds the count it knows
need not look for every tensor of every state again.

They are dictionaries to everybody else, and plain ones in copies and pickles. What goes around them (a
tensor's own .data) is not counted: a step asks every tensor for its address.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Holder(Protocol):
    def let_go(self) -> None: ...


class Changes:
    """A count that the states of an optimizer share, and who is to be told of the next change: whoever holds
    tensors of a state lets go of them then, since who takes a state away wants its memory.
    """

    def __init__(self) -> None:
        self.count = 0
        self._holders: weakref.WeakSet[Holder] = weakref.WeakSet()

    def tell(self, holder: Holder) -> None:
        self._holders.add(holder)

    def note(self) -> None:
        self.count += 1
        if self._holders:
            for holder in self._holders:
                holder.let_go()
            self._holders.clear()


class _Counting:
    changes: Changes


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


class Entry(_Counting, dict):  # type: ignore[type-arg]
    """The state of one parameter. `kind` is how it is stored, once that is known."""

    __setitem__ = _counted("__setitem__")
    update = _counted("update")
    setdefault = _counted("setdefault")
    __ior__ = _counted("__ior__")

    def __init__(self, items: Mapping[Any, Any], changes: Changes) -> None:
        super().__init__(items)
        self.changes = changes
        self.kind: Any = getattr(items, "kind", None)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (), None, None, iter(self.items())


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

    # dict's own would put plain dictionaries in, past __setitem__.
    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **kwargs: Any) -> None:
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __ior__(self, other: Any) -> States:
        self.update(other)
        return self

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
