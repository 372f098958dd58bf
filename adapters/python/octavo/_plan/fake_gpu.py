"""Tensors without memory on a GPU that need not be in this machine.

Torch's FakeTensorMode makes them, and torch chooses as on a GPU: autocast's lists, the masks of dropout, what
norms save. Without a GPU this needs four changes, which are made while a plan runs:

- Autograd gets a stream from the device's guard. The guard of `meta`, which has no stream, replaces CUDA's.
- The autograd engine gets the accelerator of every gradient's device. For the engine the device is the CPU
  (trace.py): it asks while gradients are off, and models ask while they are on.
- A few operators have a kernel for CUDA and consist of other operators elsewhere. A build of torch without
  CUDA would trace the others, and their memory.
- torch.cuda's functions ask the driver.

Backward passes run in the calling thread, so the order of events is that of the program.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import pathlib
import sys
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ._core import Gpu

CUDA, CPU = torch.device("cuda:0"), torch.device("cpu")
# Values of c10::DeviceType, which index the table of guards, c10::impl::device_guard_impl_registry.
_CUDA_TYPE, _META_TYPE = 1, 14
_WHOLE = ("silu_backward", "mish_backward", "_fused_rms_norm")
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"


@functools.cache
def has_gpu() -> bool:
    return bool(torch.cuda.is_available())


class Mode(FakeTensorMode):
    """Its avoid_device_init does not depend on torch.cuda, which is replaced meanwhile."""

    @property
    def avoid_device_init(self) -> bool:
        return not has_gpu()

    @avoid_device_init.setter
    def avoid_device_init(self, _: bool) -> None:
        pass  # older versions of torch set it from torch.cuda


def _guards() -> Any:
    """Returns the table of device guards; None if this torch does not export it."""
    folder = pathlib.Path(torch.__file__).parent / "lib"
    try:
        library = ctypes.CDLL(str(next(folder.glob("libc10.*"))))
        found = (ctypes.c_void_p * (_META_TYPE + 1)).in_dll(library, _GUARDS)
    except (OSError, StopIteration, ValueError):
        return None
    return found if found[_META_TYPE] else None


@contextlib.contextmanager
def _guarded(notes: list[str]) -> Iterator[torch.device]:
    """Yields the device of tensors: CUDA, or the CPU if this torch needs a GPU for CUDA tensors."""
    if has_gpu():
        yield CUDA
        return
    guards = _guards()
    if guards is None:
        notes.append("this build of torch knows no CUDA: sizes are those of the CPU's operators")
        yield CPU
        return
    before = guards[_CUDA_TYPE]
    guards[_CUDA_TYPE] = guards[_META_TYPE]
    try:
        yield CUDA
    finally:
        guards[_CUDA_TYPE] = before


@contextlib.contextmanager
def _whole_operators() -> Iterator[None]:
    known = torch._C._dispatch_has_kernel_for_dispatch_key
    library = torch.library.Library("aten", "IMPL")
    for name in _WHOLE:
        if hasattr(torch.ops.aten, name) and not known(f"aten::{name}", "CUDA"):
            library.impl(name, _never, "CUDA")
    try:
        yield
    finally:
        library._destroy()


def _never(*_: Any, **__: Any) -> Any:
    raise RuntimeError("a tensor without memory was given to a kernel")


@contextlib.contextmanager
def _answers(gpu: Gpu) -> Iterator[None]:
    """Makes torch.cuda answer as if the GPU were in this machine and idle."""
    (major, minor), sizes = gpu.capability, {"total_memory": gpu.memory}
    sizes["multi_processor_count"] = gpu.multiprocessors
    properties = types.SimpleNamespace(name=gpu.name, major=major, minor=minor, gcnArchName="", **sizes)
    answers: dict[str, Any] = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_capability": gpu.capability,
        "get_device_name": gpu.name,
        "get_device_properties": properties,
        "is_current_stream_capturing": False,
        "synchronize": None,
        "empty_cache": None,
        "manual_seed": None,
        "manual_seed_all": None,
        "get_rng_state": torch.zeros(16, dtype=torch.uint8, device="cpu"),
        "set_rng_state": None,
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "memory_reserved": 0,
        "mem_get_info": (gpu.memory, gpu.memory),
    }
    with contextlib.ExitStack() as stack:
        functions: dict[str, Any] = {
            name: lambda *_, _answer=answer, **__: _answer for name, answer in answers.items()
        }
        functions["is_bf16_supported"] = lambda including_emulation=True: (
            including_emulation or gpu.capability >= (8, 0)
        )
        for name, function in functions.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, function))
        yield


@contextlib.contextmanager
def fake_gpu(gpu: Gpu, notes: list[str]) -> Iterator[tuple[Mode, torch.device]]:
    """Yields the mode and the device of its tensors. Afterwards torch is as it was before."""
    supported = getattr(sys.modules[torch.optim.Optimizer.__module__], "_foreach_supported_types", [])
    with contextlib.ExitStack() as stack:
        seed = torch.get_rng_state()
        stack.callback(torch.set_rng_state, seed)
        has_gpu()
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        # A kernel that is given such a tensor must not write to address 0.
        if hasattr(functorch_config, "fake_tensor_allow_unsafe_data_ptr_access"):
            stack.enter_context(functorch_config.patch(fake_tensor_allow_unsafe_data_ptr_access=False))
        device = stack.enter_context(_guarded(notes))
        stack.enter_context(_whole_operators())
        log = logging.getLogger("torch._subclasses.fake_tensor")  # the error that is raised has more details
        stack.callback(setattr, log, "disabled", log.disabled)
        log.disabled = True
        mode = Mode(allow_non_fake_inputs=True)
        stack.enter_context(_answers(gpu))
        # torch.optim has loops over lists only for these types.
        supported.append(FakeTensor)
        stack.callback(supported.remove, FakeTensor)
        stack.enter_context(mode)
        yield mode, device
