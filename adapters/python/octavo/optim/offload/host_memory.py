"""Host memory of the library as torch tensors. Pinned memory of torch's own allocator is rounded up to powers
of two; this is not.

Tensors of a slab lie one behind the other, so that a device gets many of them by one copy. Each has a storage
of its own: files and copies of one hold nothing of the others. The memory is freed with the last of them.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ... import _abi
from ..._warn import warn

ALIGNMENT = 16  # of every tensor: gaps cost copies


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """What tensors like these take of a slab."""
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
        # At the end of the process tensors may still be in use.
        weakref.finalize(self._memory, library.octavo_host_free, self.begin).atexit = False

    def tensors(self, offset: int, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Zeros of these shapes, strides and dtypes, from `offset` on."""
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
        """Dead when the memory is freed."""
        return weakref.ref(self._memory)


def free_bytes() -> int:
    """Bytes of host memory that the process may still take."""
    return int(_abi.library().octavo_host_room())
