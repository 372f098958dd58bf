"""Host memory of the library as torch tensors. torch's allocator rounds pinned memory up to powers of two;
this memory is not rounded up.

The tensors of a slab are adjacent, so one copy moves many of them to a device. Each has its own storage, so a
file or copy of one contains nothing of the others. The memory is freed with the last of them.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ... import _abi
from ..._warn import warn

ALIGNMENT = 16  # of every tensor; a larger one would make gaps, which are copied, too


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Returns the bytes of a slab that such tensors need."""
    return sum(-(-t.numel() * t.element_size() // ALIGNMENT) * ALIGNMENT for t in tensors)


class Slab:
    def __init__(self, size: int, pin: bool) -> None:
        library, at, pinned = _abi.library(), ctypes.c_void_p(), _abi.u32()
        _abi.check(library.octavo_host_alloc(size, pin, ctypes.byref(at), ctypes.byref(pinned)))
        if pin and not pinned.value:
            warn(
                f"offload: {size / 1e9:.2f} GB of host memory could not be pinned ({_abi.last_error()}); "
                "copies to and from the GPU are then several times slower and hold up the program"
            )
        self.begin, self.end = int(at.value or 0), int(at.value or 0) + size
        self._memory = (ctypes.c_uint8 * size).from_address(self.begin)
        # Tensors may be in use until the process ends.
        weakref.finalize(self._memory, library.octavo_host_free, self.begin).atexit = False

    def tensors(self, offset: int, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns zeros of these shapes, strides and dtypes, which begin at `offset`."""
        found = {}
        for key, form in like.items():
            if count := form.numel() * form.element_size():
                flat = torch.frombuffer(self._memory, dtype=torch.uint8, count=count, offset=offset)
                found[key] = flat.view(form.dtype).as_strided(form.size(), form.stride())
            else:
                found[key] = torch.empty_like(form, device="cpu")
            offset += bytes_of([form])
        return found

    def alive(self) -> weakref.ref[object]:
        """Returns a reference that dies when the memory is freed."""
        return weakref.ref(self._memory)


def free_bytes() -> int:
    """Returns the bytes of host memory that the process may still allocate."""
    return int(_abi.library().octavo_host_room())
