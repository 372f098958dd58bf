// SPDX-License-Identifier: MIT
#include "train/nn/weight_matmul.h"

#include <ATen/autocast_mode.h>
#include <octavo/torch/autocast_type.h>
#include <octavo/torch/fp8.h>

#include <utility>

namespace octavo_train {
namespace {

namespace adapter = octavo::torch::fp8;

void check_batched(const char* name, const torch::Tensor& x, const torch::Tensor& weight) {
  TORCH_CHECK(weight.dim() == 3 && x.dim() == 3 && x.size(0) == weight.size(0) && x.size(2) == weight.size(1),
              name, ": got activations ", x.sizes(), " and weights ", weight.sizes(),
              ", expected [groups, rows, in] and [groups, in, out]");
}

}  // namespace

torch::Tensor weight_matmul(const torch::Tensor& x, const torch::Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(0),
              "weight_matmul: got activations ", x.sizes(), " and a weight ", weight.sizes(),
              ", expected [.., in] and [in, out]");
  const auto& context = adapter::current();
  return context ? context->matmul(x, weight) : x.matmul(weight);
}

torch::Tensor grouped_weight_matmul(const torch::Tensor& x, const torch::Tensor& weight) {
  check_batched("grouped_weight_matmul", x, weight);
  const auto& context = adapter::current();
  return context ? context->matmul_batched(x, weight) : x.bmm(weight);
}

torch::Tensor weight_matmul_to_groups(const torch::Tensor& x, const torch::Tensor& weight) {
  TORCH_CHECK(weight.dim() == 3 && x.dim() == 2 && x.size(1) == weight.size(1),
              "weight_matmul_to_groups: got activations ", x.sizes(), " and weights ", weight.sizes(),
              ", expected [rows, in] and [groups, in, out]");
  const auto& context = adapter::current();
  if (context) return context->matmul_batched(x, weight, {true, false});
  return x.unsqueeze(0).expand({weight.size(0), x.size(0), x.size(1)}).bmm(weight);
}

torch::Tensor grouped_weight_matmul_sum(const torch::Tensor& x, const torch::Tensor& weight) {
  check_batched("grouped_weight_matmul_sum", x, weight);
  const auto& context = adapter::current();
  return context ? context->matmul_batched(x, weight, {false, true}) : x.bmm(weight).sum(0);
}

torch::Tensor apply_linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias) {
  const torch::Tensor out = weight_matmul(x, (weight.dim() == 3 ? weight.squeeze(2) : weight).t());
  return bias.defined() ? out + bias.to(out.scalar_type()) : out;
}

torch::ScalarType compute_type(const torch::Tensor& weight) {
  const c10::DeviceType device = octavo::autocast_type(weight.device().type());
  return at::autocast::is_autocast_enabled(device) ? at::autocast::get_autocast_dtype(device)
                                                   : weight.scalar_type();
}

MatmulPrecision matmul_precision() { return adapter::current(); }

MatmulPrecisionScope::MatmulPrecisionScope(const MatmulPrecision& context)
    : before_(std::exchange(adapter::current_slot(), context)) {}

MatmulPrecisionScope::~MatmulPrecisionScope() { adapter::current_slot() = std::move(before_); }

}  // namespace octavo_train
