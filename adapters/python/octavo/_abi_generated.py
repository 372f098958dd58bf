"""Made by scripts/generate_abi from include/octavo/octavo.h: the structs and functions of the C ABI.

A parameter that points to a struct with struct_size takes only that struct, by reference. Every other pointer
is an address.
"""

import ctypes
from typing import Any

u8, u32, i32 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_int32
u64, i64, f64 = ctypes.c_uint64, ctypes.c_int64, ctypes.c_double
char, text, address = ctypes.c_char, ctypes.c_char_p, ctypes.c_void_p


def _struct(name: str, *fields: tuple[str, Any]) -> Any:
    # Without __slots__ ctypes would accept an assignment to a field that does not exist.
    return type(name, (ctypes.Structure,), {"_fields_": fields, "__slots__": ()})


def _at(struct: Any) -> Any:
    return ctypes.POINTER(struct)


# fmt: off
# ruff: noqa: E501

ABI_VERSION = 3  # OCTAVO_ABI_VERSION of include/octavo/version.h

AlgorithmInfo = _struct(
    "AlgorithmInfo", ("struct_size", u32), ("number", u32), ("name", text), ("title", text), ("family", u32),
    ("decay", u32), ("options", i32), ("update_is_rate", u32), ("first_step_fills", u32),
    ("excluded_formats", u32),
)
OptionInfo = _struct(
    "OptionInfo", ("struct_size", u32), ("range", u32), ("name", text), ("tuple", text), ("value", f64),
    ("offset", i32), ("switch_bit", i32), ("optional", u32), ("reserved", u32),
)
SlotInfo = _struct(
    "SlotInfo", ("struct_size", u32), ("moment", u32), ("name", text), ("peer", text),
)
MomentFormat = _struct(
    "MomentFormat", ("bits", u32), ("scale", u32), ("rounding", u32), ("zero_code", i32), ("element", text),
)
FormatInfo = _struct(
    "FormatInfo", ("struct_size", u32), ("number", u32), ("name", text), ("default_block", i64),
    ("moment", MomentFormat * 2), ("of_vectors", u32), ("reserved", u32),
)
TensorSpec = _struct(
    "TensorSpec", ("struct_size", u32), ("param_dtype", u32), ("store", u32), ("format", u32), ("ndim", i32),
    ("reserved", u32), ("numel", i64), ("block_size", i64), ("shape", i64 * 8),
)
TensorLayout = _struct(
    "TensorLayout", ("struct_size", u32), ("slots", i32), ("codes_bytes", i64 * 3), ("scales", i64 * 3),
    ("residual_bytes", i64),
)
MomentSpec = _struct(
    "MomentSpec", ("struct_size", u32), ("moment", u32), ("format", u32), ("ndim", i32), ("numel", i64),
    ("block_size", i64), ("shape", i64 * 8),
)
StepArgs = _struct(
    "StepArgs", ("struct_size", u32), ("nesterov", u32), ("maximize", u32), ("decay", u32), ("seed", u64),
    ("lr", f64), ("beta1", f64), ("beta2", f64), ("eps", f64), ("weight_decay", f64), ("momentum", f64),
    ("dampening", f64), ("clip_grad_norm", f64), ("scalar_lr", address), ("own", f64 * 8),
)
EngineTensor = _struct(
    "EngineTensor", ("struct_size", u32), ("group", u32), ("param_dtype", u32), ("store", u32),
    ("format", u32), ("ndim", i32), ("param_device_kind", u32), ("param_device_index", i32),
    ("state_device_kind", u32), ("state_device_index", i32), ("norm_part", u32), ("step_on_device", u32),
    ("numel", i64), ("block_size", i64), ("shape", i64 * 8), ("whole_numel", i64), ("offset", i64),
    ("id", u64), ("param", address), ("residual", address), ("codes", address * 3), ("scales", address * 3),
    ("step", address), ("known_steps", i64), ("residence", u32), ("held_in_fp32", u32),
)
EnginePlan = _struct(
    "EnginePlan", ("struct_size", u32), ("fresh", u32), ("number", u64), ("cohorts", i64),
)
DeviceReport = _struct(
    "DeviceReport", ("skipped", u8), ("pending", u8), ("reserved", u8 * 6), ("nonfinite", i64),
)
DeviceNorm = _struct(
    "DeviceNorm", ("l2", f64), ("max", f64), ("nonfinite", i64),
)
EngineDevice = _struct(
    "EngineDevice", ("struct_size", u32), ("device_kind", u32), ("device_index", i32), ("reserved", u32),
    ("stream", address), ("workspace", address), ("workspace_bytes", i64), ("loss_scale", address),
    ("found_inf", address), ("norm", address), ("report", address), ("staging", address),
    ("staging_bytes", i64),
)
EngineArgs = _struct(
    "EngineArgs", ("struct_size", u32), ("skip_nonfinite", u32), ("threads", i32), ("defer", u32),
    ("grad_factor", f64), ("devices", address), ("device_count", i64), ("add_sums", address),
    ("sums_user", address),
)
EngineNormPart = _struct(
    "EngineNormPart", ("struct_size", u32), ("part", u32), ("device_kind", u32), ("device_index", i32),
    ("out", address),
)
StepReport = _struct(
    "StepReport", ("struct_size", u32), ("skipped", u32), ("nonfinite", i64), ("pending", u32),
    ("reserved", u32),
)
ResidenceTensor = _struct(
    "ResidenceTensor", ("numel", i64), ("state_bytes", i64),
)
DropoutArgs = _struct(
    "DropoutArgs", ("struct_size", u32), ("dtype", u32), ("device_kind", u32), ("device_index", i32),
    ("from", address), ("to", address), ("outer", i64), ("batch", i64), ("inner", i64), ("samples", address),
    ("probability", f64), ("seed", u64), ("step", u64), ("layer", u32), ("threads", i32), ("stream", address),
    ("row", i64), ("pitch", i64),
)
TransducerArgs = _struct(
    "TransducerArgs", ("struct_size", u32), ("dtype", u32), ("device_kind", u32), ("device_index", i32),
    ("kind", u32), ("reduction", u32), ("batch", i64), ("frames", i64), ("positions", i64), ("tokens", i64),
    ("blank", i64), ("token_logits", address), ("token_strides", i64 * 3), ("duration_logits", address),
    ("duration_strides", i64 * 3), ("durations", address), ("duration_count", i64), ("targets", address),
    ("target_stride", i64), ("logit_lengths", address), ("target_lengths", address), ("sigma", f64),
    ("omega", f64), ("seed", u64), ("step", u64), ("workspace", address), ("workspace_bytes", i64),
    ("stream", address), ("threads", i32), ("reserved", u32),
)
TransducerGrads = _struct(
    "TransducerGrads", ("struct_size", u32), ("reserved", u32), ("grad_losses", address),
    ("token_grad", address), ("token_strides", i64 * 3), ("duration_grad", address),
    ("duration_strides", i64 * 3),
)
TransducerJoint = _struct(
    "TransducerJoint", ("struct_size", u32), ("bias_dtype", u32), ("hidden", i64), ("encoder", address),
    ("predictor", address), ("weight", address), ("bias", address), ("dropout", f64), ("samples", address),
    ("layer", u32), ("reserved", u32), ("tile_cells", i64), ("scratch", address), ("scratch_bytes", i64),
)
TransducerJointGrads = _struct(
    "TransducerJointGrads", ("struct_size", u32), ("reserved", u32), ("grad_losses", address),
    ("encoder", address), ("predictor", address), ("weight", address), ("bias", address),
)
Fp8Layer = _struct(
    "Fp8Layer", ("struct_size", u32), ("device_kind", u32), ("device_index", i32), ("format", u32),
    ("recipe", u32), ("passes", u32), ("groups", i64), ("tokens", i64), ("inputs", i64), ("outputs", i64),
    ("one_input", u32), ("one_output", u32), ("transposed_weight", u32), ("dtypes", u32 * 3),
    ("history", i64), ("threads", i32), ("reserved", u32),
)
Fp8Sizes = _struct(
    "Fp8Sizes", ("struct_size", u32), ("reserved", u32), ("codes", i64 * 3), ("transposed", i64 * 3),
    ("y", i64 * 3), ("dx", i64 * 3), ("dw", i64 * 3), ("cast_workspace", i64), ("workspace", i64),
)
Fp8RunArgs = _struct(
    "Fp8RunArgs", ("struct_size", u32), ("gather", u32), ("from", address * 3), ("codes", address * 3),
    ("transposed", address * 3), ("to", address * 3), ("states", address), ("bias_grad", address),
    ("workspace", address), ("stream", address), ("cast_workspace", address), ("cast_workspace_bytes", i64),
)
Fp8ScaleArgs = _struct(
    "Fp8ScaleArgs", ("struct_size", u32), ("device_kind", u32), ("device_index", i32), ("algo", u32),
    ("margin", i32), ("reserved", u32), ("states", address), ("tensors", i64), ("length", i64),
    ("stream", address),
)
Fp8Times = _struct(
    "Fp8Times", ("struct_size", u32), ("reserved", u32), ("plain", f64 * 3), ("fp8", f64 * 3),
    ("cast", f64 * 3), ("cast_two", f64 * 3), ("casts_of_weight", f64),
)
PlanGpu = _struct(
    "PlanGpu", ("struct_size", u32), ("compute_major", i32), ("compute_minor", i32), ("multiprocessors", i32),
    ("gigabytes", i32), ("reserved", u32), ("memory", i64), ("context", i64), ("cache", i64),
    ("bandwidth", f64), ("flops", f64 * 5), ("peer_bandwidth", f64), ("host_bandwidth", f64),
    ("key", char * 32), ("name", char * 64),
)
PlanEvent = _struct(
    "PlanEvent", ("id", i64), ("bytes", i64), ("owner", u32), ("reserved", u32),
)
PlanRules = _struct(
    "PlanRules", ("struct_size", u32), ("expandable_segments", u32),
)
PlanMemory = _struct(
    "PlanMemory", ("struct_size", u32), ("reserved_field", u32), ("allocated", i64), ("reserved", i64),
    ("owners", i64 * 8), ("rounding", i64), ("peak_event", i64),
)
PlanKernel = _struct(
    "PlanKernel", ("struct_size", u32), ("work", u32), ("precision", u32), ("reserved", u32), ("bytes", f64),
    ("bandwidth", f64), ("batch", i64), ("rows", i64), ("columns", i64), ("inner", i64), ("launches", i64),
)
PlanStep = _struct(
    "PlanStep", ("struct_size", u32), ("reserved", u32), ("seconds", f64), ("gpu_seconds", f64),
    ("host_seconds", f64), ("by_bound", f64 * 3),
)
PlanLinks = _struct(
    "PlanLinks", ("struct_size", u32), ("reserved", u32), ("ranks", i64), ("per_host", i64), ("within", f64),
    ("between", f64), ("latency", f64),
)
PlanBucket = _struct(
    "PlanBucket", ("ready", f64), ("bytes", i64),
)
EngineAddSums = ctypes.CFUNCTYPE(i32, address, u32, i32, u32, address, i64)
EngineCombine = ctypes.CFUNCTYPE(i32, address)

STRUCTS = {
    "octavo_algorithm_info": AlgorithmInfo, "octavo_option_info": OptionInfo, "octavo_slot_info": SlotInfo,
    "octavo_moment_format": MomentFormat, "octavo_format_info": FormatInfo, "octavo_tensor_spec": TensorSpec,
    "octavo_tensor_layout": TensorLayout, "octavo_moment_spec": MomentSpec, "octavo_step_args": StepArgs,
    "octavo_engine_tensor": EngineTensor, "octavo_engine_plan": EnginePlan,
    "octavo_device_report": DeviceReport, "octavo_device_norm": DeviceNorm,
    "octavo_engine_device": EngineDevice, "octavo_engine_args": EngineArgs,
    "octavo_engine_norm_part": EngineNormPart, "octavo_step_report": StepReport,
    "octavo_residence_tensor": ResidenceTensor, "octavo_dropout_args": DropoutArgs,
    "octavo_transducer_args": TransducerArgs, "octavo_transducer_grads": TransducerGrads,
    "octavo_transducer_joint": TransducerJoint, "octavo_transducer_joint_grads": TransducerJointGrads,
    "octavo_fp8_layer": Fp8Layer, "octavo_fp8_sizes": Fp8Sizes, "octavo_fp8_run_args": Fp8RunArgs,
    "octavo_fp8_scale_args": Fp8ScaleArgs, "octavo_fp8_times": Fp8Times, "octavo_plan_gpu": PlanGpu,
    "octavo_plan_event": PlanEvent, "octavo_plan_rules": PlanRules, "octavo_plan_memory": PlanMemory,
    "octavo_plan_kernel": PlanKernel, "octavo_plan_step": PlanStep, "octavo_plan_links": PlanLinks,
    "octavo_plan_bucket": PlanBucket,
}

# The result and the parameters of each function.
SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "octavo_version_string": (text, ()),
    "octavo_abi_version": (u32, ()),
    "octavo_last_error": (text, ()),
    "octavo_implementation": (text, ()),
    "octavo_force_implementation": (u32, (text,)),
    "octavo_parse": (u32, (text, text, address)),
    "octavo_algorithm_count": (i32, ()),
    "octavo_algorithm": (u32, (i32, _at(AlgorithmInfo))),
    "octavo_algorithm_option": (u32, (i32, i32, _at(OptionInfo))),
    "octavo_algorithm_slots": (i32, (i32, u32)),
    "octavo_algorithm_passes": (i32, (i32, u32)),
    "octavo_algorithm_slot": (u32, (i32, u32, i32, _at(SlotInfo))),
    "octavo_format_count": (i32, ()),
    "octavo_format": (u32, (i32, _at(FormatInfo))),
    "octavo_format_for": (u32, (u32, i64, i64, u32, address)),
    "octavo_layout": (u32, (u32, u32, _at(TensorSpec), _at(TensorLayout))),
    "octavo_moment_layout": (u32, (_at(MomentSpec), address, address)),
    "octavo_encode": (u32, (_at(MomentSpec), address, address, address)),
    "octavo_decode": (u32, (_at(MomentSpec), address, address, address)),
    "octavo_engine_create": (u32, (u32, address)),
    "octavo_engine_destroy": (None, (address,)),
    "octavo_step_args_init": (u32, (_at(StepArgs),)),
    "octavo_engine_set_group": (u32, (address, u32, u32, _at(StepArgs), u32, i32)),
    "octavo_engine_set": (u32, (address, address, _at(EngineTensor), i64)),
    "octavo_engine_remove": (u32, (address, address, i64)),
    "octavo_engine_failed_tensor": (i64, (address,)),
    "octavo_engine_begin": (u32, (address, address, address, address, i64, u32, _at(EnginePlan))),
    "octavo_engine_workspace_bytes": (i64, (address, u32, i32)),
    "octavo_engine_norm": (u32, (address, _at(EngineArgs), _at(EngineNormPart), i64, EngineCombine, address)),
    "octavo_engine_step": (u32, (address, _at(EngineArgs), _at(StepReport))),
    "octavo_engine_ready": (u32, (address, _at(EngineArgs), address, EngineCombine, address, _at(StepReport))),
    "octavo_engine_finish": (u32, (address, _at(EngineArgs), _at(EngineNormPart), i64, EngineCombine, address)),
    "octavo_engine_forget_ready": (None, (address,)),
    "octavo_engine_take": (u32, (address, address, address, address, i64, u32, i32, address)),
    "octavo_engine_holds": (u32, (address, u32)),
    "octavo_engine_drop": (u32, (address, address, i64)),
    "octavo_engine_wait": (u32, (address, address, i64, u32, u32, i32, address)),
    "octavo_engine_refresh": (u32, (address, address, i64, u32, u32, i32, address)),
    "octavo_engine_synchronize": (u32, (address,)),
    "octavo_engine_set_order": (u32, (address, address, i64)),
    "octavo_engine_staging_bytes": (i64, (address, u32, i32)),
    "octavo_engine_host_bytes": (i64, (address,)),
    "octavo_choose_residences": (u32, (address, i64, u32, i64, f64, i64, address)),
    "octavo_host_alloc": (u32, (i64, u32, address, address)),
    "octavo_host_free": (None, (address,)),
    "octavo_host_room": (i64, ()),
    "octavo_offload_trace": (None, (u32,)),
    "octavo_offload_trace_note": (u32, (text, text, f64, f64)),
    "octavo_offload_trace_write": (u32, (text,)),
    "octavo_dropout": (u32, (_at(DropoutArgs),)),
    "octavo_transducer_workspace_bytes": (i64, (_at(TransducerArgs),)),
    "octavo_transducer_loss": (u32, (_at(TransducerArgs), address)),
    "octavo_transducer_gradient": (u32, (_at(TransducerArgs), _at(TransducerGrads))),
    "octavo_transducer_joint_bytes": (u32, (_at(TransducerArgs), _at(TransducerJoint), address, address)),
    "octavo_transducer_joint_loss": (u32, (_at(TransducerArgs), _at(TransducerJoint), address)),
    "octavo_transducer_joint_gradient": (u32, (_at(TransducerArgs), _at(TransducerJoint), _at(TransducerJointGrads))),
    "octavo_fp8_supported": (u32, (u32, i32, u32)),
    "octavo_fp8_why_not": (text, (_at(Fp8Layer),)),
    "octavo_fp8_layer_sizes": (u32, (_at(Fp8Layer), _at(Fp8Sizes))),
    "octavo_fp8_run": (u32, (_at(Fp8Layer), _at(Fp8RunArgs))),
    "octavo_fp8_update_scales": (u32, (_at(Fp8ScaleArgs),)),
    "octavo_fp8_fastest": (u32, (_at(Fp8Times), address)),
    "octavo_plan_find_gpu": (u32, (text, _at(PlanGpu))),
    "octavo_plan_simulate": (u32, (address, i64, _at(PlanRules), _at(PlanMemory))),
    "octavo_plan_step_time": (u32, (_at(PlanGpu), _at(PlanKernel), i64, f64, _at(PlanStep))),
    "octavo_plan_exposed_seconds": (u32, (_at(PlanLinks), address, i64, f64, address)),
}
