"""All-reduce whose tensors are released before it returns.

gloo runs a collective in a separate thread, which holds the tensor a little longer than the caller waits. If
that thread is the last one to release a tensor that Python has seen, it needs the GIL. In an interpreter that
is shutting down it does not get it, and CPython ends the thread, which aborts the process. A program that
exits directly after its last step would then fail after a successful training.
"""

from __future__ import annotations

import atexit
import functools
import time
import weakref
from typing import Any

from torch import Tensor

_LIMIT = 0.1  # seconds; a profiler or a debugging wrapper may reference the tensor
_AT_EXIT = 0.02  # seconds


@functools.cache
def release_at_exit() -> None:
    """Lets gloo's threads have the GIL before the interpreter shuts down. A step of shards may follow FSDP2's
    collectives so closely that gloo still holds their tensors when the program ends.
    """
    atexit.register(time.sleep, _AT_EXIT)


def all_reduce(tensor: Tensor, group: Any = None, op: Any = None) -> None:
    """Calls torch.distributed.all_reduce in place. The default `op` is the sum."""
    import torch.distributed as dist

    op = dist.ReduceOp.SUM if op is None else op
    if tensor.device.type != "cpu":  # NCCL's threads hold no tensors
        dist.all_reduce(tensor, op=op, group=group)
        return
    # gloo gets a separate Python object for this memory, and a weak reference shows when gloo has released
    # it.
    passed = tensor.detach()
    held = weakref.ref(passed)
    dist.all_reduce(passed, op=op, group=group)
    del passed
    end = time.monotonic() + _LIMIT
    while held() is not None and time.monotonic() < end:
        time.sleep(1e-5)  # lets gloo's thread have the GIL
