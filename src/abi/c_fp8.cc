// The C ABI of FP8 products: its structs as those of octavo/fp8_layer.h.
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
};
Layer convert(const octavo_fp8_layer* from) {
  const octavo_fp8_layer c = read_struct("layer", from);
  if (c.passes > kAllPasses) refuse("layer.passes: got " + std::to_string(c.passes) + ", expected 0 to 7");
  Layer out;
  out.device = {static_cast<octavo::DeviceKind>(c.device_kind), c.device_index};
  out.layer = {
      c.groups, c.tokens, c.inputs, c.outputs, c.one_input != 0, c.one_output != 0, c.turned_weight != 0};
  out.settings.format = static_cast<fp8::Format>(c.format);
  out.settings.recipe = static_cast<fp8::Recipe>(c.recipe);
  for (std::size_t i = 0; i < out.choice.fp8.size(); ++i) out.choice.fp8[i] = ((c.passes >> i) & 1U) != 0;
  if (Status bad = fp8::check(out.settings); !bad.ok()) throw octavo::Error(bad);
  return out;
}

// A layer whose sizes are asked for: those of others may be no numbers.
Layer convert_usable(const octavo_fp8_layer* from) {
  Layer out = convert(from);
  if (const std::string why = fp8::why_not(out.layer); !why.empty()) refuse("layer." + why);
  return out;
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

octavo_status octavo_fp8_result(const octavo_fp8_layer* layer, uint32_t pass, int64_t sizes[3]) {
  return guarded([&]() -> Status {
    check_given("sizes", sizes);
    if (pass > 2) refuse("pass: got " + std::to_string(pass) + ", expected 0 to 2");
    const fp8::LayerResult found = fp8::result(convert_usable(layer).layer, static_cast<fp8::Pass>(pass));
    sizes[0] = found.groups;
    sizes[1] = found.rows;
    sizes[2] = found.columns;
    return {};
  });
}

int64_t octavo_fp8_codes_bytes(const octavo_fp8_layer* layer, uint32_t operand, uint32_t turned) {
  return value_or<int64_t>(-1, [&] {
    if (operand > 2) refuse("operand: got " + std::to_string(operand) + ", expected 0 to 2");
    const Layer c = convert_usable(layer);
    return fp8::codes_bytes(c.layer, c.settings, c.choice, static_cast<fp8::Operand>(operand), turned != 0);
  });
}

int64_t octavo_fp8_workspace_bytes(uint32_t device_kind, int32_t device_index) {
  return value_or<int64_t>(-1, [&] {
    return fp8::workspace_bytes({static_cast<octavo::DeviceKind>(device_kind), device_index});
  });
}

int64_t octavo_fp8_cast_workspace_bytes(const octavo_fp8_layer* layer) {
  return value_or<int64_t>(-1, [&] {
    const Layer c = convert_usable(layer);
    return fp8::cast_workspace_bytes(c.device, c.layer);
  });
}

octavo_status octavo_fp8_cast(const octavo_fp8_layer* layer, const octavo_fp8_cast_args* args) {
  return guarded([&] {
    const Layer l = convert(layer);
    const octavo_fp8_cast_args c = read_struct("args", args);
    fp8::LayerCast cast;
    cast.device = l.device;
    cast.layer = l.layer;
    cast.settings = l.settings;
    cast.choice = l.choice;
    cast.operand = static_cast<fp8::Operand>(c.operand);
    cast.dtype = static_cast<octavo::DType>(c.dtype);
    cast.from = c.from;
    cast.codes = c.codes;
    cast.turned = c.turned;
    cast.delayed = {c.scales, c.history};
    cast.activation = static_cast<fp8::Activation>(c.activation);
    cast.bias_grad = c.bias_grad;
    cast.stream = c.stream;
    cast.threads = c.threads;
    cast.workspace = c.workspace;
    cast.workspace_bytes = c.workspace_bytes;
    return fp8::cast(cast);
  });
}

octavo_status octavo_fp8_product(const octavo_fp8_layer* layer, const octavo_fp8_product_args* args) {
  return guarded([&] {
    const Layer l = convert(layer);
    const octavo_fp8_product_args c = read_struct("args", args);
    fp8::LayerProduct product;
    product.device = l.device;
    product.layer = l.layer;
    product.settings = l.settings;
    product.pass = static_cast<fp8::Pass>(c.pass);
    product.a = c.a;
    product.b = c.b;
    product.to = c.to;
    product.dtype = static_cast<octavo::DType>(c.dtype);
    product.add = c.add != 0;
    product.workspace = c.workspace;
    product.stream = c.stream;
    product.threads = c.threads;
    return fp8::product(product);
  });
}

octavo_status octavo_fp8_update_scales(const octavo_fp8_scale_args* args) {
  return guarded([&] {
    const octavo_fp8_scale_args c = read_struct("args", args);
    fp8::ScaleUpdate update;
    update.device = {static_cast<octavo::DeviceKind>(c.device_kind), c.device_index};
    update.states = c.states;
    update.tensors = c.tensors;
    update.length = c.length;
    update.algo = static_cast<fp8::AmaxAlgo>(c.algo);
    update.margin = c.margin;
    update.stream = c.stream;
    return fp8::update_scales(update);
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
