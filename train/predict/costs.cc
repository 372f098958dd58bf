// SPDX-License-Identifier: MIT
#include "train/predict/costs.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace octavo_train {
namespace {

using octavo::plan::Kernel;
using octavo::plan::Precision;
using octavo::plan::Work;
using ::torch::Tensor;

// Operators that launch nothing, by their names without overloads.
constexpr std::array kFree = std::to_array<std::string_view>({"aten::_local_scalar_dense",
                                                              "aten::_reshape_alias",
                                                              "aten::_unsafe_view",
                                                              "aten::alias",
                                                              "aten::as_strided",
                                                              "aten::detach",
                                                              "aten::diagonal",
                                                              "aten::empty",
                                                              "aten::empty_like",
                                                              "aten::empty_strided",
                                                              "aten::expand",
                                                              "aten::lift_fresh",
                                                              "aten::movedim",
                                                              "aten::narrow",
                                                              "aten::new_empty",
                                                              "aten::permute",
                                                              "aten::resize_",
                                                              "aten::select",
                                                              "aten::set_",
                                                              "aten::slice",
                                                              "aten::split",
                                                              "aten::split_with_sizes",
                                                              "aten::squeeze",
                                                              "aten::t",
                                                              "aten::transpose",
                                                              "aten::unbind",
                                                              "aten::unfold",
                                                              "aten::unsqueeze",
                                                              "aten::view",
                                                              "aten::view_as",
                                                              "aten::new_empty_strided"});

// Returns the bytes of a tensor that are read from or written to memory. Elements that are not contiguous
// count as complete sectors, and expanded elements count once.
double bytes_of(const Tensor& tensor) {
  constexpr std::int64_t kSector = 32;
  if (!tensor.defined() || tensor.numel() == 0) return 0;
  std::int64_t elements = 1, nearest = 0;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) == 1 || tensor.stride(i) == 0) continue;
    elements *= tensor.size(i);
    nearest = nearest == 0 ? tensor.stride(i) : std::min(nearest, tensor.stride(i));
  }
  const auto size = static_cast<std::int64_t>(tensor.element_size());
  return static_cast<double>(elements) *
         static_cast<double>(std::min(std::max<std::int64_t>(nearest, 1) * size, std::max(kSector, size)));
}

double bytes_of(std::span<const c10::IValue> values) {
  double bytes = 0;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) bytes += bytes_of(value.toTensor());
    if (value.isTensorList())
      for (const Tensor& each : value.toTensorVector()) bytes += bytes_of(each);
  }
  return bytes;
}

const Tensor& tensor_at(std::span<const c10::IValue> values, std::size_t i) { return values[i].toTensor(); }

// The share of a copy's speed that operators reach on an H200, if it is far from 1. Measured next to a copy
// of the same bytes; docs/benchmarks.md has the run.
constexpr double kBroadcast = 0.37;  // elementwise over tensors of different shapes or orders
constexpr double kApart = 0.8;       // elementwise over elements that are not neighbours
constexpr double kWidening = 0.5;    // from 2 bytes to 4
struct Share {
  std::string_view name;
  double bandwidth;
};
constexpr std::array kShares = std::to_array<Share>({{"aten::native_layer_norm", 0.3},
                                                     {"aten::native_layer_norm_backward", 0.12},
                                                     {"aten::tril", 0.4},
                                                     {"aten::cat", 0.7},
                                                     {"aten::_softmax", 0.6},
                                                     {"aten::_log_softmax", 0.6}});

double elementwise_share(std::span<const c10::IValue> inputs, const Tensor& out) {
  bool apart = !out.is_non_overlapping_and_dense(), broadcast = false, widening = false;
  for (const c10::IValue& value : inputs) {
    if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().numel() <= 1) continue;
    const Tensor& x = value.toTensor();
    const bool same = x.sizes() == out.sizes();
    apart = apart || (same && !x.is_non_overlapping_and_dense());
    broadcast = broadcast || !same || x.strides() != out.strides();
    widening = widening || (same && x.element_size() < out.element_size());
  }
  // If elements are apart, complete sectors are counted. They reach this rate whatever else applies.
  return apart ? kApart : broadcast ? kBroadcast : widening ? kWidening : 1;
}

double share_of(const std::string& name, std::span<const c10::IValue> inputs,
                std::span<const c10::IValue> outputs) {
  for (const Share& each : kShares)
    if (each.name == name) return each.bandwidth;
  // Reductions and gathers read in their own order, and reach a copy's speed.
  if (outputs.size() != 1 || !outputs[0].isTensor() || !outputs[0].toTensor().defined()) return 1;
  const Tensor& out = outputs[0].toTensor();
  const bool elementwise = std::ranges::any_of(inputs, [&](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && value.toTensor().sizes() == out.sizes();
  });
  return elementwise ? elementwise_share(inputs, out) : 1;
}

Kernel product(const Tensor& a, const Tensor& b) {
  Kernel out;
  out.work = Work::product;
  out.precision = precision_of(a.scalar_type());
  out.batch = a.dim() == 3 ? a.size(0) : 1;
  out.rows = a.size(-2);
  out.inner = a.size(-1);
  out.columns = b.size(-1);
  // Only the contiguous dimension must be aligned. If the inner dimension is contiguous
  // in neither factor (a sum over the rows of both), any length is as fast as an aligned one.
  if (a.stride(-1) != 1 && b.stride(-2) != 1) out.inner = (out.inner + 7) / 8 * 8;
  return out;
}

// Returns a convolution as a matmul over the elements of a window, for each group.
Kernel convolution_product(const Tensor& x, const Tensor& weight, const Tensor& out, std::int64_t groups) {
  Kernel kernel;
  kernel.work = Work::product;
  kernel.precision = precision_of(x.scalar_type());
  kernel.batch = groups;
  kernel.rows = out.numel() / std::max<std::int64_t>(out.size(1), 1);
  kernel.columns = weight.size(0) / groups;
  kernel.inner = weight.numel() / std::max<std::int64_t>(weight.size(0), 1);
  return kernel;
}

}  // namespace

Precision precision_of(::torch::ScalarType type) {
  if (type == ::torch::kBFloat16) return Precision::bf16;
  if (type == ::torch::kFloat16) return Precision::fp16;
  return Precision::fp32;
}

std::optional<Kernel> cost_of(const std::string& name, std::span<const c10::IValue> inputs,
                              std::span<const c10::IValue> outputs) {
  if (std::ranges::find(kFree, name) != kFree.end()) return std::nullopt;
  std::optional<Kernel> out;
  if (name == "aten::mm" || name == "aten::bmm") out = product(tensor_at(inputs, 0), tensor_at(inputs, 1));
  if (name == "aten::addmm" || name == "aten::baddbmm")
    out = product(tensor_at(inputs, 1), tensor_at(inputs, 2));
  if (name == "aten::convolution")
    out = convolution_product(tensor_at(inputs, 0), tensor_at(inputs, 1), tensor_at(outputs, 0),
                              inputs[8].toInt());
  if (name == "aten::convolution_backward") {  // twice: for the input and for the weight
    out = convolution_product(tensor_at(inputs, 1), tensor_at(inputs, 2), tensor_at(inputs, 0),
                              inputs[9].toInt());
    out->rows *= 2;
  }
  if (!out) out.emplace();
  // In-place operators write what they read, so their tensor is among the inputs and the outputs.
  out->bytes = bytes_of(inputs) + bytes_of(outputs);
  if (out->work == Work::stream) out->bandwidth = share_of(name, inputs, outputs);
  if (out->work == Work::stream && out->bytes == 0) return std::nullopt;
  return out;
}

}  // namespace octavo_train
