// The C ABI of FP8 matmuls: converts its structs to those of octavo/fp8_layer.h.
// SPDX-License-Identifier: MIT
#include "abi/c_common.h"

#include <octavo/fp8_layer.h>
#include <octavo/octavo.h>

#include <algorithm>
#include <string>

namespace {

using namespace octavo::c;  // NOLINT(google-build-using-namespace)
using octavo::Status;
namespace fp8 = octavo::fp8;

constexpr uint32_t kAllPasses = 7;

struct Layer {
  octavo::Device device;
  fp8::Layer layer;
  fp8::Settings settings;
  fp8::Choice choice;
  octavo::DType dtypes[3];  // by operand
  int threads;
};
Layer convert(const octavo_fp8_layer* from) {
  const octavo_fp8_layer c = read_struct("layer", from);
  if (c.passes > kAllPasses) refuse("layer.passes: got " + std::to_string(c.passes) + ", expected 0 to 7");
  Layer out;
  out.device = {static_cast<octavo::DeviceKind>(c.device_kind), c.device_index};
  out.layer = {
      c.groups, c.tokens, c.inputs, c.outputs, c.one_input != 0, c.one_output != 0, c.transposed_weight != 0};
  out.settings.format = static_cast<fp8::Format>(c.format);
  out.settings.recipe = static_cast<fp8::Recipe>(c.recipe);
  for (std::size_t i = 0; i < out.choice.fp8.size(); ++i) out.choice.fp8[i] = ((c.passes >> i) & 1U) != 0;
  if (out.settings.recipe == fp8::Recipe::delayed) out.settings.amax_history_len = c.history;
  for (std::size_t i = 0; i < 3; ++i) out.dtypes[i] = static_cast<octavo::DType>(c.dtypes[i]);
  out.threads = c.threads;
  if (Status bad = fp8::check(out.settings); !bad.ok()) throw octavo::Error(bad);
  return out;
}

fp8::LayerCast cast_of(const Layer& l, const octavo_fp8_run_args& c, uint32_t operand) {
  fp8::DelayedTensor delayed;
  if (c.states != nullptr && l.settings.recipe == fp8::Recipe::delayed)
    delayed = fp8::DelayedTensor::at(c.states, l.settings.amax_history_len, operand);
  if (c.gather == 0) delayed.history = nullptr;
  return {.device = l.device,
          .layer = l.layer,
          .settings = l.settings,
          .choice = l.choice,
          .operand = static_cast<fp8::Operand>(operand),
          .dtype = l.dtypes[operand],
          .from = c.from[operand],
          .codes = c.codes[operand],
          .transposed = c.transposed[operand],
          .delayed = delayed,
          .bias_grad = operand == 2 ? c.bias_grad : nullptr,
          .stream = c.stream,
          .threads = l.threads,
          .workspace = c.cast_workspace,
          .workspace_bytes = c.cast_workspace_bytes};
}

fp8::LayerMatmul matmul_of(const Layer& l, const octavo_fp8_run_args& c, uint32_t pass) {
  constexpr std::size_t kDtypeOf[] = {2, 0, 1};  // y has that of dy, dx that of x, and dw that of w
  const auto codes = [&](const fp8::Use& use) {
    return (use.transposed ? c.transposed : c.codes)[static_cast<std::size_t>(use.operand)];
  };
  const fp8::Uses uses = fp8::uses(l.settings.format, static_cast<fp8::Pass>(pass));
  return {.device = l.device,
          .layer = l.layer,
          .settings = l.settings,
          .pass = static_cast<fp8::Pass>(pass),
          .a = codes(uses.a),
          .b = codes(uses.b),
          .to = c.to[pass],
          .dtype = l.dtypes[kDtypeOf[pass]],
          .workspace = c.workspace,
          .stream = c.stream,
          .threads = l.threads};
}

template <class T, std::size_t kCount>
std::array<T, kCount> copied(const T (&from)[kCount]) {
  std::array<T, kCount> out;
  std::copy(std::begin(from), std::end(from), out.begin());
  return out;
}

}  // namespace

extern "C" {

octavo_status octavo_fp8_supported(uint32_t device_kind, int32_t device_index, uint32_t recipe) {
  return guarded([&] {
    return fp8::supported(octavo::Device{static_cast<octavo::DeviceKind>(device_kind), device_index},
                          static_cast<fp8::Recipe>(recipe));
  });
}

const char* octavo_fp8_why_not(const octavo_fp8_layer* layer) {
  thread_local std::string kept;
  return value_or<const char*>(nullptr, [&] {
    kept = fp8::why_not(convert(layer).layer);
    return kept.c_str();
  });
}

octavo_status octavo_fp8_layer_sizes(const octavo_fp8_layer* layer, octavo_fp8_sizes* sizes) {
  return guarded([&] {
    const Layer l = convert(layer);
    if (const std::string why = fp8::why_not(l.layer); !why.empty()) refuse("layer." + why);
    octavo_fp8_sizes out = {};
    for (uint32_t i = 0; i < 3; ++i) {
      const auto bytes = [&](bool transposed) {
        return fp8::codes_bytes(l.layer, l.settings, l.choice, static_cast<fp8::Operand>(i), transposed);
      };
      out.codes[i] = bytes(false);
      out.transposed[i] = bytes(true);
    }
    for (const auto& [to, pass] : {std::pair(out.y, fp8::Pass::forward), std::pair(out.dx, fp8::Pass::dgrad),
                                   std::pair(out.dw, fp8::Pass::wgrad)}) {
      const fp8::LayerResult found = fp8::result(l.layer, pass);
      to[0] = found.groups, to[1] = found.rows, to[2] = found.columns;
    }
    out.cast_workspace = fp8::cast_workspace_bytes(l.device, l.layer);
    out.workspace = fp8::workspace_bytes(l.device);
    return write_struct("sizes", out, sizes);
  });
}

octavo_status octavo_fp8_run(const octavo_fp8_layer* layer, const octavo_fp8_run_args* args) {
  return guarded([&]() -> Status {
    const Layer l = convert(layer);
    const octavo_fp8_run_args c = read_struct("args", args);
    if (c.bias_grad != nullptr && c.from[2] == nullptr)
      refuse("args.bias_grad: got a buffer, expected null: dy, whose sums it gets, is not cast");
    for (uint32_t i = 0; i < 3; ++i) {
      if (c.from[i] == nullptr) continue;
      if (Status bad = fp8::cast(cast_of(l, c, i)); !bad.ok()) return bad;
    }
    for (uint32_t i = 0; i < 3; ++i) {
      if (c.to[i] == nullptr) continue;
      if (Status bad = fp8::matmul(matmul_of(l, c, i)); !bad.ok()) return bad;
    }
    return {};
  });
}

octavo_status octavo_fp8_update_scales(const octavo_fp8_scale_args* args) {
  return guarded([&] {
    const octavo_fp8_scale_args c = read_struct("args", args);
    return fp8::update_scales({.device = {static_cast<octavo::DeviceKind>(c.device_kind), c.device_index},
                               .states = c.states,
                               .tensors = c.tensors,
                               .length = c.length,
                               .algo = static_cast<fp8::AmaxAlgo>(c.algo),
                               .margin = c.margin,
                               .stream = c.stream});
  });
}

octavo_status octavo_fp8_fastest(const octavo_fp8_times* times, uint32_t* passes) {
  return guarded([&]() -> Status {
    check_given("passes", passes);
    const octavo_fp8_times c = read_struct("times", times);
    const fp8::Choice found =
        fp8::fastest({copied(c.plain), copied(c.fp8), copied(c.cast), copied(c.cast_two), c.casts_of_weight});
    *passes = 0;
    for (std::size_t i = 0; i < found.fp8.size(); ++i) *passes |= (found.fp8[i] ? 1U : 0U) << i;
    return {};
  });
}

}  // extern "C"
