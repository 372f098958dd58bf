// The C ABI of names, codecs and dropout; and the last error of each thread.
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
#include <string>

// These structs lie in device memory: both sides use one layout, and nothing is copied.
static_assert(sizeof(bool) == 1 && sizeof(octavo_device_report) == sizeof(octavo::StepReport) &&
              offsetof(octavo_device_report, skipped) == offsetof(octavo::StepReport, skipped) &&
              offsetof(octavo_device_report, pending) == offsetof(octavo::StepReport, pending) &&
              offsetof(octavo_device_report, nonfinite) == offsetof(octavo::StepReport, nonfinite));
static_assert(sizeof(octavo_device_norm) == sizeof(octavo::GradNorm) &&
              offsetof(octavo_device_norm, l2) == offsetof(octavo::GradNorm, l2) &&
              offsetof(octavo_device_norm, max) == offsetof(octavo::GradNorm, max) &&
              offsetof(octavo_device_norm, nonfinite) == offsetof(octavo::GradNorm, nonfinite));

// The result of octavo_last_error, and the memory of texts that are not literals.
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

octavo::TensorSpec convert(const char* name, const octavo_tensor_spec* from) {
  const octavo_tensor_spec& c = read_struct(name, from);
  octavo::TensorSpec spec;
  spec.numel = c.numel;
  std::copy(std::begin(c.shape), std::end(c.shape), spec.shape.begin());
  spec.ndim = c.ndim;
  spec.param_dtype = static_cast<octavo::DType>(c.param_dtype);
  spec.store = static_cast<octavo::WeightStore>(c.store);
  spec.format = static_cast<octavo::StateFormat>(c.format);
  spec.block_size = c.block_size;
  return spec;
}

octavo::MomentSpec convert(const char* name, const octavo_moment_spec* from) {
  const octavo_moment_spec& c = read_struct(name, from);
  octavo::MomentSpec spec;
  spec.moment = static_cast<octavo::Moment>(c.moment);
  spec.format = static_cast<octavo::StateFormat>(c.format);
  spec.block_size = c.block_size;
  spec.numel = c.numel;
  std::copy(std::begin(c.shape), std::end(c.shape), spec.shape.begin());
  spec.ndim = c.ndim;
  return spec;
}

// A moment's spec, and its buffers as spans of the sizes in its layout.
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

octavo_status octavo_layout(uint32_t algorithm, uint32_t switches, const octavo_tensor_spec* spec,
                            octavo_tensor_layout* out) {
  return guarded([&]() -> Status {
    octavo::GroupConfig config{static_cast<octavo::Algorithm>(algorithm)};
    config.momentum = false;  // an option like the others, which `switches` contains
    config.switches = switches;
    const auto size = octavo::layout(config, convert("spec", spec)).value();
    octavo_tensor_layout result{};
    result.slots = size.slots;
    for (std::size_t i = 0; i < size.slot.size(); ++i) {
      result.codes_bytes[i] = size.slot[i].codes_bytes;
      result.scales[i] = size.slot[i].scales;
    }
    result.residual_bytes = size.residual_bytes;
    return write_struct("out", result, out);
  });
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

octavo_status octavo_dropout(const octavo_dropout_args* args) {
  return guarded([&]() -> Status {
    const octavo_dropout_args& c = read_struct("args", args);
    return octavo::dropout({device(c.device_kind, c.device_index), static_cast<octavo::DType>(c.dtype),
                            c.from, c.to, c.outer, c.batch, c.inner, c.samples, c.probability, c.seed, c.step,
                            c.layer, c.stream, c.threads, c.row, c.pitch});
  });
}

}  // extern "C"
