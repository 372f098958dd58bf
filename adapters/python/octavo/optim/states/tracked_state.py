"""optimizer.state as dictionaries that record what other code may have done to them.

They count changes, so a step that finds the count unchanged does not compare every state. An entry also
records whether it is exposed: whether code outside the optimizer has one of its tensors. Only then can such a
tensor have been written, or moved through its .data, and a step compares these tensors only.

Other code sees ordinary dictionaries. Copies and pickles are plain dictionaries.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from ..._codec import NATIVE_STEP, SCALE, STEP


class ChangeCount:
    """The number of changes, which all states of an optimizer share, and the tensors that every step looks
    at. Any change drops these tensors, so removed states are freed immediately.
    """

    def __init__(self) -> None:
        self.count = 0
        self.watched_tensors: list[Tensor] = []
        # Waits for unfinished steps. It is called before a tensor is read, written or removed.
        self.synchronize: Callable[[], None] | None = None
        # The optimizer's lock: no step begins between synchronize() and the change.
        self.lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    def count_change(self) -> None:
        self.count += 1
        self.watched_tensors = []

    def wait_for_steps(self) -> None:
        if self.synchronize is not None:
            self.synchronize()


class _Counting:
    """Methods that call __setitem__, which dict's own methods do not."""

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
    """Adds dict's methods of these names, which first call `before`. No step begins between the two."""

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
    """The state of one parameter. `kind` is how it is stored, once the optimizer has decided it.

    The key "step" finds the step count under either of its names. The optimizer itself uses plain() and
    replace().
    """

    def __init__(self, items: Mapping[Any, Any], changes: ChangeCount | None = None) -> None:
        super().__init__(items.plain() if isinstance(items, Entry) else items)
        self.changes = ChangeCount() if changes is None else changes
        self.kind: Any = getattr(items, "kind", None)
        # Code that puts tensors in still has them.
        self.exposed: bool = getattr(items, "exposed", bool(items))
        self.registered = False  # with the engine, as it is now
        self.steps: int | None = None  # the value of the step count, if the engine does not have it yet
        self._versions: dict[Any, int] = {}
        self._rename()
        self.record_versions()

    # --- Methods for the optimizer ---

    def plain(self) -> dict[str, Any]:
        """Returns a plain copy, with the count under "step". It does not expose the entry."""
        return {STEP if key == NATIVE_STEP else key: value for key, value in dict.items(self)}

    def replace(self, items: Mapping[str, Any]) -> None:
        """Replaces the content by what the optimizer has made of plain()."""
        own = self.plain()
        if own.keys() != items.keys() or any(own[key] is not items[key] for key in own):
            self.mark_changed()
            dict.clear(self)
            dict.update(self, items)
            self._rename()
        self.record_versions()

    def mark_changed(self, steps: int | None = None) -> None:
        """Notes that the state must be registered again. `steps`: the value of its step count, if known."""
        self.registered, self.steps = False, steps
        self.changes.count_change()

    def expose(self) -> None:
        """Notes that other code gets the tensors."""
        self.changes.wait_for_steps()
        if not self.exposed:
            self.exposed = True
            self.record_versions()
            self.changes.count_change()

    def expose_and_mark_changed(self) -> None:
        self.expose()
        self.mark_changed()

    def record_versions(self) -> None:
        """Notes the tensors' versions, so later writes are found."""
        if self.exposed:
            self._versions = self._current_versions()

    def step_count(self) -> Any:
        return dict.get(self, self._real(STEP))

    def tensors(self) -> list[Tensor]:
        return [value for value in dict.values(self) if isinstance(value, Tensor)]

    def _current_versions(self) -> dict[Any, int]:
        """Returns the versions of the tensors whose writes torch counts."""
        tensors = {key: value for key, value in dict.items(self) if isinstance(value, Tensor)}
        return {key: tensor._version for key, tensor in tensors.items() if not tensor.is_inference()}

    def rewritten_codes(self) -> list[str]:
        """Returns the moments whose codes other code has written without their scales."""
        if not self.exposed:
            return []
        now = self._current_versions().items()
        changed = {key for key, version in now if self._versions.get(key, version) != version}
        return [key for key in changed if key + SCALE in self and key + SCALE not in changed]

    def _rename(self) -> None:
        """Gives the step count this library's own name if there are codes, and torch's name otherwise."""
        native = any(isinstance(key, str) and key.endswith(SCALE) for key in self)
        wrong, right = (STEP, NATIVE_STEP) if native else (NATIVE_STEP, STEP)
        if dict.__contains__(self, wrong):
            dict.__setitem__(self, right, dict.pop(self, wrong))

    def _real(self, key: Any) -> Any:
        return NATIVE_STEP if key == STEP and dict.__contains__(self, NATIVE_STEP) else key

    # --- Methods for other code ---

    def __iter__(self) -> Iterator[Any]:  # defined so that dict(entry) calls __getitem__
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
            self.expose_and_mark_changed()  # the caller still has this tensor
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
    """The states of all parameters. A dictionary that is assigned becomes an Entry."""

    def __init__(self, items: Mapping[Any, Any] | None = None) -> None:
        super().__init__(dict)
        self.changes = ChangeCount()
        for key, value in (items or {}).items():
            self[key] = value

    def before_removal(self) -> None:
        """Called before a state is removed, because unfinished steps write its tensors."""
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

    # defaultdict's copy() would call States with two arguments.
    def copy(self) -> defaultdict[Any, Any]:
        return defaultdict(dict, self)

    __copy__ = copy

    def __or__(self, other: Any) -> Any:
        return self.copy() | other if isinstance(other, dict) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return other | self.copy() if isinstance(other, dict) else NotImplemented

    def __reduce__(self) -> tuple[Any, ...]:
        return defaultdict, (dict,), None, None, iter(self.items())
