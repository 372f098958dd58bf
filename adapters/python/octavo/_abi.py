"""The C ABI of include/octavo/octavo.h through ctypes: its structs, its functions, its errors.

The library is the one that OCTAVO_LIBRARY names, else the one in this package (lib/liboctavo.so), else the
one that a source checkout has built (build/lib/liboctavo.so). It is loaded at the first use, not at import.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import sys
from typing import Any

ABI_VERSION = 1  # of octavo/version.h: what the structs below are
MAX_SLOTS = 3
MAX_DIMS = 8

u32, i32, u64, i64 = ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_int64
_double, _pointer = ctypes.c_double, ctypes.c_void_p


class OctavoError(RuntimeError):
    """A native call failed; the message is the library's own."""


class GroupConfig(ctypes.Structure):
    _fields_ = (
        ("struct_size", u32),
        ("algorithm", u32),
        ("amsgrad", u32),
        ("momentum", u32),
        ("device_kind", u32),
        ("device_index", i32),
        ("switches", u32),
        ("reserved", u32),
    )


class AlgorithmInfo(ctypes.Structure):
    _fields_ = (
        ("struct_size", u32),
        ("number", u32),
        ("name", ctypes.c_char_p),
        ("title", ctypes.c_char_p),
        ("family", u32),
        ("decay", u32),
        ("options", i32),
        ("update_is_rate", u32),
        ("first_step_fills", u32),
        ("excluded_formats", u32),
    )


class OptionInfo(ctypes.Structure):
    _fields_ = (
        ("struct_size", u32),
        ("range", u32),
        ("name", ctypes.c_char_p),
        ("tuple", ctypes.c_char_p),
        ("value", _double),
        ("offset", i32),
        ("switch_bit", i32),
        ("optional", u32),
        ("reserved", u32),
    )


class SlotInfo(ctypes.Structure):
    _fields_ = (
        ("struct_size", u32),
        ("moment", u32),
        ("name", ctypes.c_char_p),
        ("peer", ctypes.c_char_p),
    )


class MomentFormat(ctypes.Structure):
    _fields_ = (
        ("bits", u32),
        ("scale", u32),
        ("rounding", u32),
        ("zero_code", i32),
        ("element", ctypes.c_char_p),
    )


class FormatInfo(ctypes.Structure):
    _fields_ = (
        ("struct_size", u32),
        ("number", u32),
        ("name", ctypes.c_char_p),
        ("default_block", i64),
        ("moment", MomentFormat * 2),
        ("of_vectors", u32),
        ("reserved", u32),
    )


class TensorSpec(ctypes.Structure):
    _fields_ = (
        ("struct_size", u32),
        ("param_dtype", u32),
        ("grad_dtype", u32),
        ("store", u32),
        ("format", u32),
        ("ndim", i32),
        ("numel", i64),
        ("block_size", i64),
        ("shape", i64 * MAX_DIMS),
    )


class TensorLayout(ctypes.Structure):
    _fields_ = (
        ("struct_size", u32),
        ("slots", i32),
        ("codes_bytes", i64 * MAX_SLOTS),
        ("scales", i64 * MAX_SLOTS),
        ("residual_bytes", i64),
        ("workspace_bytes", i64),
    )


class TensorArgs(ctypes.Structure):
    _fields_ = (
        ("spec", TensorSpec),
        ("param", _pointer),
        ("grad", _pointer),
        ("residual", _pointer),
        ("codes", _pointer * MAX_SLOTS),
        ("scales", _pointer * MAX_SLOTS),
        ("id", u64),
        ("offset", i64),
    )


class StepArgs(ctypes.Structure):
    _fields_ = (
        ("struct_size", u32),
        ("guard", u32),
        ("threads", i32),
        ("nesterov", u32),
        ("maximize", u32),
        ("decay", u32),
        ("step", i64),
        ("seed", u64),
        ("lr", _double),
        ("beta1", _double),
        ("beta2", _double),
        ("eps", _double),
        ("weight_decay", _double),
        ("momentum", _double),
        ("dampening", _double),
        ("grad_factor", _double),
        ("workspace", _pointer),
        ("workspace_bytes", i64),
        ("stream", _pointer),
        ("max_norm", _double),
        ("scalar_lr", _pointer),
        ("scalar_step", _pointer),
        ("scalar_loss_scale", _pointer),
        ("scalar_found_inf", _pointer),
        ("scalar_norm", _pointer),
        ("scalar_report", _pointer),
        ("own", _double * 8),
    )


class StepReport(ctypes.Structure):
    _fields_ = (
        ("struct_size", u32),
        ("skipped", u32),
        ("nonfinite", i64),
        ("pending", u32),
        ("reserved", u32),
    )


class MomentSpec(ctypes.Structure):
    _fields_ = (
        ("struct_size", u32),
        ("moment", u32),
        ("format", u32),
        ("ndim", i32),
        ("numel", i64),
        ("block_size", i64),
        ("shape", i64 * MAX_DIMS),
    )


class EngineTensor(ctypes.Structure):
    _fields_ = (
        ("struct_size", u32),
        ("group", u32),
        ("param_dtype", u32),
        ("store", u32),
        ("format", u32),
        ("ndim", i32),
        ("param_device_kind", u32),
        ("param_device_index", i32),
        ("state_device_kind", u32),
        ("state_device_index", i32),
        ("norm_part", u32),
        ("step_on_device", u32),
        ("numel", i64),
        ("block_size", i64),
        ("shape", i64 * MAX_DIMS),
        ("whole_numel", i64),
        ("offset", i64),
        ("id", u64),
        ("param", _pointer),
        ("residual", _pointer),
        ("codes", _pointer * MAX_SLOTS),
        ("scales", _pointer * MAX_SLOTS),
        ("step", _pointer),
        ("known_steps", i64),
    )


class EnginePlan(ctypes.Structure):
    _fields_ = (("struct_size", u32), ("fresh", u32), ("number", u64), ("cohorts", i64))


class EngineDevice(ctypes.Structure):
    _fields_ = (
        ("struct_size", u32),
        ("device_kind", u32),
        ("device_index", i32),
        ("reserved", u32),
        ("stream", _pointer),
        ("workspace", _pointer),
        ("workspace_bytes", i64),
        ("loss_scale", _pointer),
        ("found_inf", _pointer),
        ("norm", _pointer),
        ("report", _pointer),
    )


class EngineArgs(ctypes.Structure):
    _fields_ = (
        ("struct_size", u32),
        ("guard", u32),
        ("threads", i32),
        ("reserved", u32),
        ("grad_factor", _double),
        ("devices", _pointer),
        ("device_count", i64),
    )


class EngineNormPart(ctypes.Structure):
    _fields_ = (
        ("struct_size", u32),
        ("part", u32),
        ("device_kind", u32),
        ("device_index", i32),
        ("out", _pointer),
    )


Combine = ctypes.CFUNCTYPE(i32, _pointer)

# What each function returns and takes. Large arrays are passed by address.
_at = ctypes.POINTER
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "octavo_version_string": (ctypes.c_char_p, ()),
    "octavo_abi_version": (u32, ()),
    "octavo_last_error": (ctypes.c_char_p, ()),
    "octavo_implementation": (ctypes.c_char_p, ()),
    "octavo_parse": (u32, (ctypes.c_char_p, ctypes.c_char_p, _at(u32))),
    "octavo_algorithm_count": (i32, ()),
    "octavo_algorithm": (u32, (i32, _at(AlgorithmInfo))),
    "octavo_algorithm_option": (u32, (i32, i32, _at(OptionInfo))),
    "octavo_algorithm_slots": (i32, (i32, u32)),
    "octavo_algorithm_slot": (u32, (i32, u32, i32, _at(SlotInfo))),
    "octavo_format_count": (i32, ()),
    "octavo_format": (u32, (i32, _at(FormatInfo))),
    "octavo_layout": (u32, (_at(GroupConfig), _at(TensorSpec), _at(TensorLayout))),
    "octavo_step_args_init_sized": (None, (_at(StepArgs), ctypes.c_size_t)),
    "octavo_group_create": (u32, (_at(GroupConfig), _pointer, i64, _at(_pointer))),
    "octavo_group_rebind_grads": (u32, (_pointer, _pointer, i64)),
    "octavo_group_step": (u32, (_pointer, _at(StepArgs), _at(StepReport))),
    "octavo_group_workspace_bytes": (i64, (_pointer,)),
    "octavo_group_destroy": (None, (_pointer,)),
    "octavo_norm_create": (u32, (u32, i32, _pointer, i64, _at(_pointer))),
    "octavo_norm_rebind": (u32, (_pointer, _pointer, i64)),
    "octavo_norm_run": (u32, (_pointer, _pointer, i64, _pointer, _pointer, i32)),
    "octavo_norm_workspace_bytes": (i64, (_pointer,)),
    "octavo_norm_destroy": (None, (_pointer,)),
    "octavo_format_for": (u32, (u32, i64, i64, u32, _at(u32))),
    "octavo_engine_create": (u32, (u32, _at(_pointer))),
    "octavo_engine_destroy": (None, (_pointer,)),
    "octavo_engine_set_group": (u32, (_pointer, u32, u32, _at(StepArgs), u32, i32)),
    "octavo_engine_set": (u32, (_pointer, _pointer, _pointer, i64)),
    "octavo_engine_remove": (u32, (_pointer, _pointer, i64)),
    "octavo_engine_set_counts": (u32, (_pointer, _pointer, _pointer, i64)),
    "octavo_engine_failed_tensor": (i64, (_pointer,)),
    "octavo_engine_begin": (u32, (_pointer, _pointer, _pointer, _pointer, i64, u32, _at(EnginePlan))),
    "octavo_engine_workspace_bytes": (i64, (_pointer, u32, i32)),
    "octavo_engine_norm": (u32, (_pointer, _at(EngineArgs), _pointer, i64, Combine, _pointer)),
    "octavo_engine_step": (u32, (_pointer, _at(EngineArgs), _pointer)),
    "octavo_engine_ready": (u32, (_pointer, _at(EngineArgs), _pointer, Combine, _pointer, _pointer)),
    "octavo_engine_finish": (u32, (_pointer, _at(EngineArgs), _pointer, i64, Combine, _pointer)),
    "octavo_engine_forget_ready": (None, (_pointer,)),
    "octavo_moment_layout": (u32, (_at(MomentSpec), _at(i64), _at(i64))),
    "octavo_encode": (u32, (_at(MomentSpec), _pointer, _pointer, _pointer)),
    "octavo_decode": (u32, (_at(MomentSpec), _pointer, _pointer, _pointer)),
}


def library_path() -> pathlib.Path:
    """Where the library is; OctavoError where it is not."""
    if named := os.environ.get("OCTAVO_LIBRARY"):
        candidates = [pathlib.Path(named)]
    else:
        here = pathlib.Path(__file__).resolve().parent
        # An editable install has its sources here and its library in another folder of the package.
        folders = [pathlib.Path(folder) for folder in sys.modules[__name__.partition(".")[0]].__path__]
        candidates = [folder / "lib/liboctavo.so" for folder in dict.fromkeys([here, *folders])]
        if len(here.parents) > 2:
            candidates.append(here.parents[2] / "build/lib/liboctavo.so")
    for path in candidates:
        if path.exists():
            return path
    looked = " and ".join(str(path) for path in candidates)
    raise OctavoError(
        f"the octavo library was not found at {looked}: install the package with `pip install .`, build the "
        "sources with `make`, or name a library with the environment variable OCTAVO_LIBRARY"
    )


@functools.cache
def library() -> ctypes.CDLL:
    path = library_path()
    try:
        loaded = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise OctavoError(f"{path} is not a usable octavo library: {error}") from error
    if (found := loaded.octavo_abi_version()) != ABI_VERSION:
        raise OctavoError(
            f"{path} has version {found} of the C ABI, this package needs {ABI_VERSION}: "
            "install both from one release"
        )
    return loaded


def last_error() -> str:
    return str(library().octavo_last_error().decode())


def check(status: int) -> None:
    if status != 0:
        raise OctavoError(last_error())


@functools.cache
def parse(kind: str, name: str) -> int:
    """The number of a name; kind is dtype, state, store or optimizer. Unknown names are a ValueError."""
    number = u32()
    if library().octavo_parse(kind.encode(), name.encode(), ctypes.byref(number)) != 0:
        raise ValueError(last_error())
    return number.value


def implementation() -> str:
    """The CPU implementation in use, for example "avx2"."""
    name = library().octavo_implementation()
    if name is None:
        raise OctavoError(last_error())
    return str(name.decode())


def new(struct: type[Any], **fields: Any) -> Any:
    """A struct of the ABI with its size filled in."""
    return struct(struct_size=ctypes.sizeof(struct), **fields)
