// SPDX-License-Identifier: MIT
#include "train/nn/weight_matmul.h"

#include "train/nn/matmul_precision.h"

#include <octavo/torch/fp8.h>

#include <utility>

namespace octavo_train {
namespace {

using ::torch::Tensor;
namespace adapter = octavo::torch::fp8;

void check_batched(const char* name, const Tensor& x, const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 3 && x.dim() == 3 && x.size(0) == weight.size(0) && x.size(2) == weight.size(1),
              name, ": got activations ", x.sizes(), " and weights ", weight.sizes(),
              ", expected [groups, rows, in] and [groups, in, out]");
}

}  // namespace

Tensor weight_matmul(const Tensor& x, const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(0), "project: got activations ",
              x.sizes(), " and a weight ", weight.sizes(), ", expected [.., in] and [in, out]");
  const auto& context = adapter::current();
  return context ? context->matmul(x, weight) : x.matmul(weight);
}

Tensor grouped_weight_matmul(const Tensor& x, const Tensor& weight) {
  check_batched("grouped_weight_matmul", x, weight);
  const auto& context = adapter::current();
  return context ? context->matmul_batched(x, weight) : x.bmm(weight);
}

Tensor weight_matmul_to_groups(const Tensor& x, const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 3 && x.dim() == 2 && x.size(1) == weight.size(1),
              "weight_matmul_to_groups: got activations ", x.sizes(), " and weights ", weight.sizes(),
              ", expected [rows, in] and [groups, in, out]");
  const auto& context = adapter::current();
  if (context) return context->matmul_batched(x, weight, {true, false});
  return x.unsqueeze(0).expand({weight.size(0), x.size(0), x.size(1)}).bmm(weight);
}

Tensor grouped_weight_matmul_sum(const Tensor& x, const Tensor& weight) {
  check_batched("project_and_sum", x, weight);
  const auto& context = adapter::current();
  return context ? context->matmul_batched(x, weight, {false, true}) : x.bmm(weight).sum(0);
}

MatmulPrecision product_context() { return adapter::current(); }

MatmulPrecisionScope::MatmulPrecisionScope(const MatmulPrecision& context)
    : before_(std::exchange(adapter::current_slot(), std::static_pointer_cast<adapter::Context>(context))) {}

MatmulPrecisionScope::~MatmulPrecisionScope() {
  adapter::current_slot() = std::static_pointer_cast<adapter::Context>(std::move(before_));
}

}  // namespace octavo_train
