// The C ABI over the C++ API: copies structs, catches what memory exhaustion throws, keeps the last error per
// thread.
// SPDX-License-Identifier: MIT
#include "abi/c_common.h"
#include "optimizers/group.h"
#include "optimizers/norm_group.h"

#include <octavo/backend.h>
#include <octavo/codec.h>
#include <octavo/dropout.h>
#include <octavo/fp8.h>
#include <octavo/octavo.h>
#include <octavo/transducer.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

struct octavo_group {
  octavo::Group group;
};
struct octavo_norm {
  octavo::NormGroup norm;
};

// These structs lie in device memory, so both sides use the same layout and nothing is copied.
static_assert(sizeof(bool) == 1 && sizeof(octavo_device_report) == sizeof(octavo::StepReport) &&
              offsetof(octavo_device_report, skipped) == offsetof(octavo::StepReport, skipped) &&
              offsetof(octavo_device_report, pending) == offsetof(octavo::StepReport, pending) &&
              offsetof(octavo_device_report, nonfinite) == offsetof(octavo::StepReport, nonfinite));
static_assert(sizeof(octavo_device_norm) == sizeof(octavo::GradNorm) &&
              offsetof(octavo_device_norm, l2) == offsetof(octavo::GradNorm, l2) &&
              offsetof(octavo_device_norm, max) == offsetof(octavo::GradNorm, max) &&
              offsetof(octavo_device_norm, nonfinite) == offsetof(octavo::GradNorm, nonfinite));

// What octavo_last_error returns, and the memory of those texts that are put together.
namespace {
thread_local const char* last_error = "";    // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
thread_local std::string last_error_memory;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)
}  // namespace

octavo_status octavo::c::report(const Status& status) {
  if (!status.ok()) {
    last_error_memory = status.message();
    last_error = last_error_memory.c_str();
  }
  return static_cast<octavo_status>(status.code());
}
octavo_status octavo::c::report_no_memory() {
  last_error = "[octavo] out of host memory";  // a literal: there is no memory for a string
  return static_cast<octavo_status>(StatusCode::failed);
}

namespace {

using namespace octavo::c;  // NOLINT(google-build-using-namespace)
using octavo::Status;

octavo::GroupConfig convert(const octavo_group_config& c) {
  return {static_cast<octavo::Algorithm>(c.algorithm),
          c.amsgrad != 0,
          c.momentum != 0,
          {static_cast<octavo::DeviceKind>(c.device_kind), c.device_index},
          c.switches};
}

octavo::TensorSpec convert(const char* name, const octavo_tensor_spec* from) {
  const octavo_tensor_spec c = read_struct(name, from);
  octavo::TensorSpec spec;
  spec.numel = c.numel;
  std::copy(std::begin(c.shape), std::end(c.shape), spec.shape.begin());
  spec.ndim = c.ndim;
  spec.param_dtype = static_cast<octavo::DType>(c.param_dtype);
  spec.grad_dtype = static_cast<octavo::DType>(c.grad_dtype);
  spec.store = static_cast<octavo::WeightStore>(c.store);
  spec.format = static_cast<octavo::StateFormat>(c.format);
  spec.block_size = c.block_size;
  return spec;
}

// What follows the spec in an octavo_tensor. It never changes: new fields go to the end of the spec, whose
// struct_size then says how far apart a caller's tensors lie.
struct TensorTail {
  void* param;
  const void* grad;
  void* residual;
  void* codes[3];
  float* scales[3];
  uint64_t id;
  int64_t offset;
};
static_assert(sizeof(octavo_tensor) == sizeof(octavo_tensor_spec) + sizeof(TensorTail) &&
              offsetof(octavo_tensor, param) == sizeof(octavo_tensor_spec) + offsetof(TensorTail, param) &&
              offsetof(octavo_tensor, scales) == sizeof(octavo_tensor_spec) + offsetof(TensorTail, scales) &&
              offsetof(octavo_tensor, offset) == sizeof(octavo_tensor_spec) + offsetof(TensorTail, offset));

std::vector<octavo::TensorArgs> convert(const octavo_tensor* tensors, int64_t count) {
  check_array("tensors", tensors, count);
  std::vector<octavo::TensorArgs> list;
  list.reserve(static_cast<std::size_t>(count));
  const std::size_t spec_size = count > 0 ? tensors->spec.struct_size : 0;
  if (spec_size % alignof(octavo_tensor) != 0) {
    refuse("tensor.spec.struct_size: got " + std::to_string(spec_size) +
           ", expected sizeof(octavo_tensor_spec)");
  }
  const auto* at = reinterpret_cast<const std::byte*>(tensors);
  for (int64_t i = 0; i < count; ++i, at += spec_size + sizeof(TensorTail)) {
    const auto* from = reinterpret_cast<const octavo_tensor_spec*>(at);
    octavo::TensorArgs args;
    args.spec = convert("tensor.spec", from);
    if (from->struct_size != spec_size) {
      refuse("tensors[" + std::to_string(i) + "].spec.struct_size: got " + std::to_string(from->struct_size) +
             ", expected that of tensors[0], " + std::to_string(spec_size));
    }
    TensorTail tail;
    std::memcpy(&tail, at + spec_size, sizeof tail);
    args.param = tail.param;
    args.grad = tail.grad;
    args.residual = tail.residual;
    for (std::size_t s = 0; s < args.state.size(); ++s) args.state[s] = {tail.codes[s], tail.scales[s]};
    args.id = tail.id;
    args.offset = tail.offset;
    list.push_back(args);
  }
  return list;
}

octavo::MomentSpec convert(const char* name, const octavo_moment_spec* from) {
  const octavo_moment_spec c = read_struct(name, from);
  octavo::MomentSpec spec;
  spec.moment = static_cast<octavo::Moment>(c.moment);
  spec.format = static_cast<octavo::StateFormat>(c.format);
  spec.block_size = c.block_size;
  spec.numel = c.numel;
  std::copy(std::begin(c.shape), std::end(c.shape), spec.shape.begin());
  spec.ndim = c.ndim;
  return spec;
}

// A moment's spec with its buffers as spans of the sizes its layout asks for.
struct MomentBuffers {
  octavo::MomentSpec spec;
  std::span<std::byte> codes;
  std::span<float> scales;
};
MomentBuffers buffers(const char* name, const octavo_moment_spec* from, const void* codes,
                      const float* scales) {
  const octavo::MomentSpec spec = convert(name, from);
  const octavo::SlotLayout size = octavo::layout(spec).value();
  if (size.codes_bytes > 0) check_given("codes", codes);
  if (size.scales > 0) check_given("scales", scales);
  // The callee's span types are const again; nothing is written through a pointer that was given as const.
  auto* bytes = const_cast<std::byte*>(static_cast<const std::byte*>(codes));
  return {spec,
          {bytes, static_cast<std::size_t>(size.codes_bytes)},
          {const_cast<float*>(scales), static_cast<std::size_t>(size.scales)}};
}

std::vector<octavo::GradView> convert(const octavo_grad_view* grads, int64_t count) {
  check_array("grads", grads, count);
  std::vector<octavo::GradView> list;
  list.reserve(static_cast<std::size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    if (grads[i].numel < 0 || grads[i].numel > (int64_t{1} << 48)) {
      throw octavo::Error(Status::invalid("[grad_norm] grads[" + std::to_string(i) + "].numel: got " +
                                          std::to_string(grads[i].numel) + ", expected 0 to 2^48"));
    }
    list.push_back({grads[i].data, static_cast<octavo::DType>(grads[i].dtype), grads[i].numel});
  }
  return list;
}

}  // namespace

extern "C" {

const char* octavo_version_string(void) { return octavo::version().data(); }
uint32_t octavo_abi_version(void) { return OCTAVO_ABI_VERSION; }
const char* octavo_last_error(void) { return last_error; }

const char* octavo_implementation(void) {
  return value_or<const char*>(nullptr, [] { return octavo::implementation().value().data(); });
}

octavo_status octavo_force_implementation(const char* name) {
  return guarded([&] { return octavo::force_implementation(name == nullptr ? "" : name); });
}
octavo_status octavo_set_default_threads(int32_t threads) {
  return guarded([&] { return octavo::set_default_threads(threads); });
}
int32_t octavo_default_threads(void) {
  return value_or(0, [] { return octavo::default_threads(); });
}

octavo_status octavo_parse(const char* kind, const char* name, uint32_t* out) {
  return guarded([&]() -> Status {
    check_given("kind", kind);
    check_given("name", name);
    check_given("out", out);
    const auto put = [&](const auto& parsed) -> Status {
      if (parsed.ok()) *out = static_cast<uint32_t>(*parsed);
      return parsed.status();
    };
    const std::string_view which = kind;
    if (which == "dtype") return put(octavo::parse_dtype(name));
    if (which == "state") return put(octavo::parse_state_format(name));
    if (which == "store") return put(octavo::parse_weight_store(name));
    if (which == "optimizer") return put(octavo::parse_algorithm(name));
    if (which == "reduction") return put(octavo::parse_transducer_reduction(name));
    if (which == "fp8_format") return put(octavo::fp8::parse_format(name));
    if (which == "fp8_recipe") return put(octavo::fp8::parse_recipe(name));
    if (which == "amax_compute_algo") return put(octavo::fp8::parse_amax_algo(name));
    if (which == "activation") return put(octavo::fp8::parse_activation(name));
    return Status::invalid("[octavo] kind: got '" + std::string(which) +
                           "', expected dtype, state, store, optimizer, reduction, fp8_format, fp8_recipe, "
                           "amax_compute_algo or activation");
  });
}

octavo_status octavo_layout(const octavo_group_config* config, const octavo_tensor_spec* spec,
                            octavo_tensor_layout* out) {
  return guarded([&]() -> Status {
    const auto c = read_struct("config", config);
    const auto s = convert("spec", spec);
    const auto size = octavo::layout(convert(c), s).value();
    octavo_tensor_layout result{};
    result.slots = size.slots;
    for (std::size_t i = 0; i < size.slot.size(); ++i) {
      result.codes_bytes[i] = size.slot[i].codes_bytes;
      result.scales[i] = size.slot[i].scales;
    }
    result.residual_bytes = size.residual_bytes;
    result.workspace_bytes = size.workspace_bytes;
    return write_struct("out", result, out);
  });
}

void octavo_step_args_init_sized(octavo_step_args* args, size_t struct_size) {
  if (args == nullptr) return;
  const octavo::StepArgs defaults;
  octavo_step_args filled{};
  filled.struct_size = static_cast<uint32_t>(struct_size);
  filled.lr = defaults.hyper.lr;
  filled.beta1 = defaults.hyper.beta1;
  filled.beta2 = defaults.hyper.beta2;
  filled.eps = defaults.hyper.eps;
  filled.grad_factor = defaults.grad_factor;
  std::memset(args, 0, struct_size);  // also the fields of a header that is newer than this library
  std::memcpy(args, &filled, std::min(struct_size, sizeof filled));
}

// The name in parentheses is the function, not the macro.
void(octavo_step_args_init)(octavo_step_args* args) {
  octavo_step_args_init_sized(args, kFirstSize<octavo_step_args>);
}

octavo_status octavo_group_create(const octavo_group_config* config, const octavo_tensor* tensors,
                                  int64_t count, octavo_group** out) {
  return guarded([&]() -> Status {
    check_given("out", out);
    const auto c = read_struct("config", config);
    const auto list = convert(tensors, count);
    auto group = octavo::Group::create(convert(c), list).value();
    *out = new octavo_group{std::move(group)};
    return {};
  });
}

octavo_status octavo_group_rebind(octavo_group* group, const octavo_tensor* tensors, int64_t count) {
  return guarded([&]() -> Status {
    check_given("group", group);
    const auto list = convert(tensors, count);
    return group->group.rebind(list);
  });
}

octavo_status octavo_group_rebind_grads(octavo_group* group, const void* const* grads, int64_t count) {
  return guarded([&]() -> Status {
    check_given("group", group);
    check_array("grads", grads, count);
    return group->group.rebind_grads({grads, static_cast<std::size_t>(count)});
  });
}

octavo_status octavo_group_step(octavo_group* group, const octavo_step_args* args, octavo_step_report* out) {
  return guarded([&]() -> Status {
    check_given("group", group);
    const auto c = read_struct("args", args);
    if (out != nullptr) {  // before the step: a bad report must not be found after the step was taken
      (void)read_struct("report", out);
    }
    const auto workspace = workspace_span(c.workspace, c.workspace_bytes);
    octavo::StepArgs step = step_args(c);
    step.workspace = workspace;
    const auto done = group->group.step(step);
    if (!done.ok() || out == nullptr) return done.status();
    octavo_step_report result{};
    result.skipped = done->skipped ? 1 : 0;
    result.pending = done->pending ? 1 : 0;
    result.nonfinite = done->nonfinite;
    return write_struct("report", result, out);
  });
}

int64_t octavo_group_workspace_bytes(const octavo_group* group) {
  return value_or<int64_t>(-1, [&] { return group == nullptr ? 0 : group->group.workspace_bytes(); });
}
void octavo_group_destroy(octavo_group* group) { delete group; }

int64_t octavo_grad_norm_workspace(const octavo_grad_view* grads, int64_t count) {
  return value_or<int64_t>(-1, [&] { return octavo::grad_norm_workspace(convert(grads, count)); });
}

octavo_status octavo_grad_norm(const octavo_grad_view* grads, int64_t count, double* workspace,
                               int64_t workspace_count, int32_t threads, octavo_grad_norm_result* out) {
  return guarded([&]() -> Status {
    const auto list = convert(grads, count);
    (void)read_struct("out", out);
    const bool none = workspace == nullptr || workspace_count <= 0;
    const auto norm =
        octavo::grad_norm(
            list, {none ? nullptr : workspace, none ? 0 : static_cast<std::size_t>(workspace_count)}, threads)
            .value();
    octavo_grad_norm_result result{};
    result.l2 = norm.l2;
    result.max = norm.max;
    result.nonfinite = norm.nonfinite;
    return write_struct("out", result, out);
  });
}

octavo_status octavo_norm_create(uint32_t device_kind, int32_t device_index, const octavo_grad_view* grads,
                                 int64_t count, octavo_norm** out) {
  return guarded([&]() -> Status {
    check_given("out", out);
    const auto list = convert(grads, count);
    auto norm =
        octavo::NormGroup::create({static_cast<octavo::DeviceKind>(device_kind), device_index}, list).value();
    *out = new octavo_norm{std::move(norm)};
    return {};
  });
}

octavo_status octavo_norm_rebind(octavo_norm* norm, const octavo_grad_view* grads, int64_t count) {
  return guarded([&]() -> Status {
    check_given("norm", norm);
    const auto list = convert(grads, count);
    return norm->norm.rebind(list);
  });
}

octavo_status octavo_norm_run(octavo_norm* norm, void* workspace, int64_t workspace_bytes,
                              octavo_device_norm* out, void* stream, int32_t threads) {
  return guarded([&]() -> Status {
    check_given("norm", norm);
    const auto bytes = workspace_span(workspace, workspace_bytes);
    return norm->norm.run(bytes, reinterpret_cast<octavo::GradNorm*>(out), stream, threads);
  });
}

int64_t octavo_norm_workspace_bytes(const octavo_norm* norm) {
  return value_or<int64_t>(-1, [&] { return norm == nullptr ? 0 : norm->norm.workspace_bytes(); });
}
void octavo_norm_destroy(octavo_norm* norm) { delete norm; }

double octavo_clip_factor(double l2, double max_norm, double unscale) {
  return value_or(0.0, [&] { return octavo::clip_factor(l2, max_norm, unscale); });
}

octavo_status octavo_moment_layout(const octavo_moment_spec* spec, int64_t* codes_bytes, int64_t* scales) {
  return guarded([&]() -> Status {
    check_given("codes_bytes", codes_bytes);
    check_given("scales", scales);
    const auto s = convert("spec", spec);
    const auto size = octavo::layout(s).value();
    *codes_bytes = size.codes_bytes;
    *scales = size.scales;
    return {};
  });
}

octavo_status octavo_encode(const octavo_moment_spec* spec, const float* values, void* codes, float* scales) {
  return guarded([&]() -> Status {
    const auto b = buffers("spec", spec, codes, scales);
    return octavo::encode(b.spec, {values, static_cast<std::size_t>(b.spec.numel)}, b.codes, b.scales);
  });
}

octavo_status octavo_decode(const octavo_moment_spec* spec, const void* codes, const float* scales,
                            float* values) {
  return guarded([&]() -> Status {
    const auto b = buffers("spec", spec, codes, scales);
    return octavo::decode(b.spec, b.codes, b.scales, {values, static_cast<std::size_t>(b.spec.numel)});
  });
}

octavo_status octavo_convert(const octavo_moment_spec* from, const void* from_codes, const float* from_scales,
                             const octavo_moment_spec* to, void* to_codes, float* to_scales) {
  return guarded([&]() -> Status {
    const auto source = buffers("from", from, from_codes, from_scales);
    const auto target = buffers("to", to, to_codes, to_scales);
    return octavo::convert(source.spec, source.codes, source.scales, target.spec, target.codes,
                           target.scales);
  });
}

octavo_status octavo_inspect(const octavo_moment_spec* spec, const void* codes, const float* scales,
                             const float* reference, octavo_moment_report* out) {
  return guarded([&]() -> Status {
    const auto b = buffers("spec", spec, codes, scales);
    const std::size_t known = reference == nullptr ? 0 : static_cast<std::size_t>(b.spec.numel);
    const auto found = octavo::inspect(b.spec, b.codes, b.scales, {reference, known}).value();
    octavo_moment_report result{};
    result.bytes = found.bytes;
    result.max_error = found.max_error;
    result.relative_error = found.relative_error;
    result.saturated = found.saturated;
    result.zeros = found.zeros;
    result.lost = found.lost;
    result.nonfinite = found.nonfinite;
    return write_struct("out", result, out);
  });
}

octavo_status octavo_dropout(const octavo_dropout_args* args) {
  return guarded([&]() -> Status {
    const octavo_dropout_args c = read_struct("args", args);
    return octavo::dropout({{static_cast<octavo::DeviceKind>(c.device_kind), c.device_index},
                            static_cast<octavo::DType>(c.dtype),
                            c.from,
                            c.to,
                            c.outer,
                            c.batch,
                            c.inner,
                            c.samples,
                            c.probability,
                            c.seed,
                            c.step,
                            c.layer,
                            c.stream,
                            c.threads,
                            c.row,
                            c.pitch});
  });
}

}  // extern "C"
