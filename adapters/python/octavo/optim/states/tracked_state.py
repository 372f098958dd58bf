"""optimizer.state as dictionaries that know what others may have done to them.

They count the changes made to them: a step that finds the count it knows need not look for the tensors of
every state again. An entry also knows whether anybody outside has got a tensor of it. Only then can somebody
have written into one, or moved it by its .data, and a step looks at such tensors.

They are dictionaries to everybody else, and plain ones in copies and pickles.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from ..._codec import NATIVE_STEP, SCALE, STEP


class ChangeCount:
    """A count that the states of an optimizer share. A step keeps the tensors here that it looks at every
    time; a change drops them, so that removed states are freed immediately.
    """

    def __init__(self) -> None:
        self.count = 0
        self.watched_tensors: list[Tensor] = []
        # Waits for the steps that are under way. It is called before a tensor is read, written or removed.
        self.synchronize: Callable[[], None] | None = None
        # The optimizer's: no step begins between settle() and the change.
        self.lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    def count_change(self) -> None:
        self.count += 1
        self.watched_tensors = []

    def wait_for_steps(self) -> None:
        if self.synchronize is not None:
            self.synchronize()


class _Counting:
    """dict's own would put values in past __setitem__."""

    changes: ChangeCount

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


def _call_before(before: Callable[[Any], None], *names: str) -> Callable[[type], type]:
    """dict's own methods of these names, called after `before`. No step begins between the two."""

    def decorate(cls: type) -> type:
        for name in names:
            plain = getattr(dict, name)

            def method(self: Any, *args: Any, plain: Any = plain, **kwargs: Any) -> Any:
                with self.changes.lock:
                    before(self)
                    return plain(self, *args, **kwargs)

            method.__name__, method.__doc__ = name, plain.__doc__
            setattr(cls, name, method)
        return cls

    return decorate


@_call_before(lambda entry: entry.expose(), "items", "values", "copy", "__or__", "__ror__")
@_call_before(lambda entry: entry.expose_and_mark_changed(), "popitem", "clear")
class Entry(_Counting, dict):  # type: ignore[type-arg]
    """The state of one parameter. `kind` is how it is stored, once that is known.

    "step" finds the count under either of its names. The optimizer itself goes through plain() and replace().
    """

    def __init__(self, items: Mapping[Any, Any], changes: ChangeCount | None = None) -> None:
        super().__init__(items.plain() if isinstance(items, Entry) else items)
        self.changes = ChangeCount() if changes is None else changes
        self.kind: Any = getattr(items, "kind", None)
        # Whoever has put tensors in has them still.
        self.exposed: bool = getattr(items, "exposed", bool(items))
        self.registered = False  # with the engine, as it is now
        self.steps: int | None = None  # what the count holds, where the engine is yet to be told
        self._versions: dict[Any, int] = {}
        self._rename()
        self.record_versions()

    # --- For the optimizer ---

    def plain(self) -> dict[str, Any]:
        """The entry as a dictionary of its own, with the count under "step". Hands nothing out."""
        return {STEP if key == NATIVE_STEP else key: value for key, value in dict.items(self)}

    def replace(self, items: Mapping[str, Any]) -> None:
        """Takes over what the optimizer has made of plain()."""
        own = self.plain()
        if own.keys() != items.keys() or any(own[key] is not items[key] for key in own):
            self.mark_changed()
            dict.clear(self)
            dict.update(self, items)
            self._rename()
        self.record_versions()

    def mark_changed(self, steps: int | None = None) -> None:
        """The engine must be told of it again; `steps`: what its count holds now."""
        self.registered, self.steps = False, steps
        self.changes.count_change()

    def expose(self) -> None:
        """Somebody outside is given the tensors."""
        self.changes.wait_for_steps()
        if not self.exposed:
            self.exposed = True
            self.record_versions()
            self.changes.count_change()

    def expose_and_mark_changed(self) -> None:
        self.expose()
        self.mark_changed()

    def record_versions(self) -> None:
        """The tensors are known as they are now."""
        if self.exposed:
            self._versions = {key: tensor._version for key, tensor in self.versioned_tensors().items()}

    def step_count(self) -> Any:
        return dict.get(self, self._real(STEP))

    def tensors(self) -> list[Tensor]:
        return [value for value in dict.values(self) if isinstance(value, Tensor)]

    def versioned_tensors(self) -> dict[Any, Tensor]:
        """The tensors whose writes torch counts."""
        return {
            key: value
            for key, value in dict.items(self)
            if isinstance(value, Tensor) and not value.is_inference()
        }

    def rewritten_codes(self) -> list[str]:
        """Moments whose codes somebody has written to, and their scales not."""
        if not self.exposed:
            return []
        now = {key: tensor._version for key, tensor in self.versioned_tensors().items()}
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
        self.expose()
        return dict.__getitem__(self, self._real(key))

    def get(self, key: Any, default: Any = None) -> Any:
        self.expose()
        return dict.get(self, self._real(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        with self.changes.lock:
            self.expose_and_mark_changed()  # the caller has the tensor that it puts in
            key = self._real(key)
            dict.__setitem__(self, key, value)
            self._rename()
        if isinstance(value, Tensor) and not value.is_inference():
            self._versions[self._real(key)] = value._version

    def __delitem__(self, key: Any) -> None:
        with self.changes.lock:
            self.changes.wait_for_steps()
            self.mark_changed()
            dict.__delitem__(self, self._real(key))

    def pop(self, key: Any, *default: Any) -> Any:
        with self.changes.lock:
            self.expose_and_mark_changed()
            return dict.pop(self, self._real(key), *default)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (), None, None, iter(list(dict.items(self)))


@_call_before(lambda states: states.before_removal(), "__delitem__", "pop", "popitem", "clear")
class States(_Counting, defaultdict):  # type: ignore[type-arg]
    """The states of all parameters. A dictionary that is put in becomes an Entry."""

    def __init__(self, items: Mapping[Any, Any] | None = None) -> None:
        super().__init__(dict)
        self.changes = ChangeCount()
        for key, value in (items or {}).items():
            self[key] = value

    def before_removal(self) -> None:
        """Called before a state leaves: steps that are under way write its tensors."""
        self.changes.wait_for_steps()
        self.changes.count_change()

    def __setitem__(self, key: Any, value: Any) -> None:
        with self.changes.lock:
            if dict.__contains__(self, key):
                self.changes.wait_for_steps()
            self.changes.count_change()
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
