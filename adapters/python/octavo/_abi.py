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

ABI_VERSION = 2  # of octavo/version.h: what the structs below are
MAX_SLOTS = 3
MAX_DIMS = 8

u32, i32, u64, i64 = ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_int64
_pointer = ctypes.c_void_p


class OctavoError(RuntimeError):
    """A native call failed; the message is the library's own."""


_TYPES: dict[str, Any] = {"u32": u32, "i32": i32, "u64": u64, "i64": i64, "f64": ctypes.c_double}
_TYPES.update({"ptr": _pointer, "str": ctypes.c_char_p, "char": ctypes.c_char})


def _struct(name: str, fields: str) -> Any:
    """A struct of the header, written as there: "u32 struct_size part; ptr codes[3]"."""
    found = []
    for run in fields.split("; "):
        kind, *names = run.split()
        for field in names:
            bare, _, length = field.removesuffix("]").partition("[")
            found.append((bare, _TYPES[kind] * int(length) if length else _TYPES[kind]))
    _TYPES[name] = type(name, (ctypes.Structure,), {"_fields_": found})
    return _TYPES[name]


GroupConfig = _struct(
    "GroupConfig",
    "u32 struct_size algorithm amsgrad momentum device_kind; i32 device_index; u32 switches reserved",
)
AlgorithmInfo = _struct(
    "AlgorithmInfo",
    "u32 struct_size number; str name title; u32 family decay; i32 options; u32 update_is_rate "
    "first_step_fills excluded_formats",
)
OptionInfo = _struct(
    "OptionInfo",
    "u32 struct_size range; str name tuple; f64 value; i32 offset switch_bit; u32 optional reserved",
)
SlotInfo = _struct("SlotInfo", "u32 struct_size moment; str name peer")
MomentFormat = _struct("MomentFormat", "u32 bits scale rounding; i32 zero_code; str element")
FormatInfo = _struct(
    "FormatInfo",
    "u32 struct_size number; str name; i64 default_block; MomentFormat moment[2]; u32 of_vectors reserved",
)
TensorSpec = _struct(
    "TensorSpec",
    "u32 struct_size param_dtype grad_dtype store format; i32 ndim; i64 numel block_size shape[8]",
)
TensorLayout = _struct(
    "TensorLayout",
    "u32 struct_size; i32 slots; i64 codes_bytes[3] scales[3] residual_bytes workspace_bytes",
)
TensorArgs = _struct(
    "TensorArgs",
    "TensorSpec spec; ptr param grad residual codes[3] scales[3]; u64 id; i64 offset",
)
StepArgs = _struct(
    "StepArgs",
    "u32 struct_size guard; i32 threads; u32 nesterov maximize decay; i64 step; u64 seed; f64 lr beta1 "
    "beta2 eps weight_decay momentum dampening grad_factor; ptr workspace; i64 workspace_bytes; ptr "
    "stream; f64 max_norm; ptr scalar_lr scalar_step scalar_loss_scale scalar_found_inf scalar_norm "
    "scalar_report; f64 own[8]",
)
StepReport = _struct("StepReport", "u32 struct_size skipped; i64 nonfinite; u32 pending reserved")
MomentSpec = _struct(
    "MomentSpec",
    "u32 struct_size moment format; i32 ndim; i64 numel block_size shape[8]",
)
EngineTensor = _struct(
    "EngineTensor",
    "u32 struct_size group param_dtype store format; i32 ndim; u32 param_device_kind; i32 "
    "param_device_index; u32 state_device_kind; i32 state_device_index; u32 norm_part step_on_device; i64 "
    "numel block_size shape[8] whole_numel offset; u64 id; ptr param residual codes[3] scales[3] step; "
    "i64 known_steps; u32 residence held_in_fp32",
)
ResidenceTensor = _struct("ResidenceTensor", "i64 numel state_bytes")
EnginePlan = _struct("EnginePlan", "u32 struct_size fresh; u64 number; i64 cohorts")
EngineDevice = _struct(
    "EngineDevice",
    "u32 struct_size device_kind; i32 device_index; u32 reserved; ptr stream workspace; i64 workspace_bytes; "
    "ptr loss_scale found_inf norm report staging; i64 staging_bytes",
)
EngineArgs = _struct(
    "EngineArgs",
    "u32 struct_size guard; i32 threads; u32 defer; f64 grad_factor; ptr devices; i64 device_count; ptr "
    "add_sums sums_user",
)
TransducerArgs = _struct(
    "TransducerArgs",
    "u32 struct_size dtype device_kind; i32 device_index; u32 kind reduction; i64 batch frames positions "
    "tokens blank; ptr token_logits; i64 token_strides[3]; ptr duration_logits; i64 duration_strides[3]; ptr "
    "durations; i64 duration_count; ptr targets; i64 target_stride; ptr logit_lengths target_lengths; f64 "
    "sigma omega; u64 seed step; ptr workspace; i64 workspace_bytes; ptr stream; i32 threads; u32 reserved",
)
TransducerGrads = _struct(
    "TransducerGrads",
    "u32 struct_size reserved; ptr grad_losses token_grad; i64 token_strides[3]; ptr duration_grad; i64 "
    "duration_strides[3]",
)
TransducerJoint = _struct(
    "TransducerJoint",
    "u32 struct_size bias_dtype; i64 hidden; ptr encoder predictor weight bias; f64 dropout; ptr samples; "
    "u32 layer reserved; i64 tile_cells; ptr scratch; i64 scratch_bytes",
)
TransducerJointGrads = _struct(
    "TransducerJointGrads",
    "u32 struct_size reserved; ptr grad_losses encoder predictor weight bias",
)
Fp8Layer = _struct(
    "Fp8Layer",
    "u32 struct_size device_kind; i32 device_index; u32 format recipe passes; i64 groups tokens inputs "
    "outputs; u32 one_input one_output transposed_weight dtypes[3]; i64 history; i32 threads; u32 reserved",
)
Fp8Sizes = _struct(
    "Fp8Sizes",
    "u32 struct_size reserved; i64 codes[3] transposed[3] y[3] dx[3] dw[3] cast_workspace workspace",
)
Fp8RunArgs = _struct(
    "Fp8RunArgs",
    "u32 struct_size gather; ptr from[3] codes[3] transposed[3] to[3] states bias_grad workspace stream "
    "cast_workspace; i64 cast_workspace_bytes",
)
Fp8ScaleArgs = _struct(
    "Fp8ScaleArgs",
    "u32 struct_size device_kind; i32 device_index; u32 algo; i32 margin; u32 reserved; ptr states; i64 "
    "tensors length; ptr stream",
)
Fp8Times = _struct(
    "Fp8Times",
    "u32 struct_size reserved; f64 plain[3] fp8[3] cast[3] cast_two[3] casts_of_weight",
)
PlanGpu = _struct(
    "PlanGpu",
    "u32 struct_size; i32 compute_major compute_minor multiprocessors gigabytes; u32 reserved; i64 memory "
    "context cache; f64 bandwidth flops[5] peer_bandwidth host_bandwidth; char key[32] name[64]",
)
PlanEvent = _struct("PlanEvent", "i64 id bytes; u32 owner reserved")
PlanRules = _struct("PlanRules", "u32 struct_size expandable_segments")
PlanMemory = _struct(
    "PlanMemory",
    "u32 struct_size reserved_field; i64 allocated reserved owners[8] rounding peak_event",
)
PlanKernel = _struct(
    "PlanKernel",
    "u32 struct_size work precision reserved; f64 bytes bandwidth; i64 batch rows columns inner launches",
)
PlanStep = _struct("PlanStep", "u32 struct_size reserved; f64 seconds gpu_seconds host_seconds by_bound[3]")
PlanLinks = _struct("PlanLinks", "u32 struct_size reserved; i64 ranks per_host; f64 within between latency")
PlanBucket = _struct("PlanBucket", "f64 ready; i64 bytes")
EngineNormPart = _struct("EngineNormPart", "u32 struct_size part device_kind; i32 device_index; ptr out")


Combine = ctypes.CFUNCTYPE(i32, _pointer)
AddSums = ctypes.CFUNCTYPE(i32, _pointer, u32, i32, u32, _pointer, i64)

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
    "octavo_group_step": (u32, (_pointer, _at(StepArgs), _at(StepReport))),
    "octavo_group_workspace_bytes": (i64, (_pointer,)),
    "octavo_group_destroy": (None, (_pointer,)),
    "octavo_format_for": (u32, (u32, i64, i64, u32, _at(u32))),
    "octavo_engine_create": (u32, (u32, _at(_pointer))),
    "octavo_engine_destroy": (None, (_pointer,)),
    "octavo_engine_set_group": (u32, (_pointer, u32, u32, _at(StepArgs), u32, i32)),
    "octavo_engine_set": (u32, (_pointer, _pointer, _pointer, i64)),
    "octavo_engine_remove": (u32, (_pointer, _pointer, i64)),
    "octavo_engine_failed_tensor": (i64, (_pointer,)),
    "octavo_engine_begin": (u32, (_pointer, _pointer, _pointer, _pointer, i64, u32, _at(EnginePlan))),
    "octavo_engine_workspace_bytes": (i64, (_pointer, u32, i32)),
    "octavo_engine_norm": (u32, (_pointer, _at(EngineArgs), _pointer, i64, Combine, _pointer)),
    "octavo_engine_step": (u32, (_pointer, _at(EngineArgs), _pointer)),
    "octavo_engine_ready": (u32, (_pointer, _at(EngineArgs), _pointer, Combine, _pointer, _pointer)),
    "octavo_engine_finish": (u32, (_pointer, _at(EngineArgs), _pointer, i64, Combine, _pointer)),
    "octavo_engine_forget_ready": (None, (_pointer,)),
    "octavo_engine_take": (u32, (_pointer, _pointer, _pointer, _pointer, i64, u32, i32, _pointer)),
    "octavo_engine_drop": (u32, (_pointer, _pointer, i64)),
    "octavo_engine_holds": (u32, (_pointer, u32)),
    "octavo_engine_wait": (u32, (_pointer, _pointer, i64, u32, u32, i32, _pointer)),
    "octavo_engine_refresh": (u32, (_pointer, _pointer, i64, u32, u32, i32, _pointer)),
    "octavo_engine_synchronize": (u32, (_pointer,)),
    "octavo_engine_set_order": (u32, (_pointer, _pointer, i64)),
    "octavo_engine_staging_bytes": (i64, (_pointer, u32, i32)),
    "octavo_engine_host_bytes": (i64, (_pointer,)),
    "octavo_choose_residences": (u32, (_at(ResidenceTensor), i64, u32, i64, ctypes.c_double, i64, _at(u32))),
    "octavo_host_alloc": (u32, (i64, u32, _at(_pointer), _at(u32))),
    "octavo_host_free": (None, (_pointer,)),
    "octavo_host_room": (i64, ()),
    "octavo_transducer_workspace_bytes": (i64, (_at(TransducerArgs),)),
    "octavo_transducer_loss": (u32, (_at(TransducerArgs), _pointer)),
    "octavo_transducer_gradient": (u32, (_at(TransducerArgs), _at(TransducerGrads))),
    "octavo_transducer_joint_bytes": (u32, (_at(TransducerArgs), _at(TransducerJoint), _at(i64), _at(i64))),
    "octavo_transducer_joint_loss": (u32, (_at(TransducerArgs), _at(TransducerJoint), _pointer)),
    "octavo_transducer_joint_gradient": (
        u32,
        (_at(TransducerArgs), _at(TransducerJoint), _at(TransducerJointGrads)),
    ),
    "octavo_fp8_supported": (u32, (u32, i32, u32)),
    "octavo_fp8_why_not": (ctypes.c_char_p, (_at(Fp8Layer),)),
    "octavo_fp8_layer_sizes": (u32, (_at(Fp8Layer), _at(Fp8Sizes))),
    "octavo_fp8_run": (u32, (_at(Fp8Layer), _at(Fp8RunArgs))),
    "octavo_fp8_update_scales": (u32, (_at(Fp8ScaleArgs),)),
    "octavo_fp8_fastest": (u32, (_at(Fp8Times), _at(u32))),
    "octavo_plan_gpu_count": (i32, ()),
    "octavo_plan_gpu_key": (ctypes.c_char_p, (i32,)),
    "octavo_plan_find_gpu": (u32, (ctypes.c_char_p, _at(PlanGpu))),
    "octavo_plan_simulate": (u32, (_pointer, i64, _at(PlanRules), _at(PlanMemory))),
    "octavo_plan_step_time": (u32, (_at(PlanGpu), _pointer, i64, ctypes.c_double, _at(PlanStep))),
    "octavo_plan_exposed_seconds": (
        u32,
        (_at(PlanLinks), _pointer, i64, ctypes.c_double, _at(ctypes.c_double)),
    ),
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
        # The version is compared first: a library of another release may lack functions.
        found = loaded.octavo_abi_version()
        if found != ABI_VERSION:
            raise OctavoError(
                f"{path} has version {found} of the C ABI, this package needs {ABI_VERSION}: "
                "install both from one release"
            )
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise OctavoError(f"{path} is not a usable octavo library: {error}") from error
    return loaded


def last_error() -> str:
    return str(library().octavo_last_error().decode())


def check(status: int) -> None:
    if status != 0:
        raise OctavoError(last_error())


@functools.cache
def parse(kind: str, name: str) -> int:
    """The number of a name; kind as in octavo_parse. Unknown names are a ValueError."""
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
