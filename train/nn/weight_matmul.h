// The single entry point for matmuls of activations with weights. Models call these functions for every such
// matmul, so that its precision is chosen here and not in every model: torch's matmul, or an FP8 matmul if
// this thread has an FP8 context. Matmuls of activations with each other (attention) do not use these
// functions.
//
// A weight is [in, out]: the last dimension of the activations is summed over. A weight may be a view of a
// parameter.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>

namespace octavo::torch::fp8 {
class Context;
}
namespace torch::nn {
class Module;
}

namespace octavo_train {

// Returns the matmul of x [.., in] with weight [in, out]: [.., out].
torch::Tensor weight_matmul(const torch::Tensor& x, const torch::Tensor& weight);

// Returns a batched matmul with one weight per group (head, expert): x [groups, rows, in] with weight
// [groups, in, out] gives [groups, rows, out].
torch::Tensor grouped_weight_matmul(const torch::Tensor& x, const torch::Tensor& weight);
// Returns grouped_weight_matmul() for one x [rows, in] that all groups share.
torch::Tensor weight_matmul_to_groups(const torch::Tensor& x, const torch::Tensor& weight);
// Returns grouped_weight_matmul() summed over the groups: [rows, out].
torch::Tensor grouped_weight_matmul_sum(const torch::Tensor& x, const torch::Tensor& weight);

// Returns x [.., in] times the transposed weight, plus the bias if it is defined: [.., out]. The weight has
// the layout of model files, [out, in], or [out, in, 1] if it belongs to a convolution with kernel size 1.
torch::Tensor apply_linear(const torch::Tensor& x, const torch::Tensor& weight,
                           const torch::Tensor& bias = {});

// Returns the dtype of activations: autocast's dtype if autocast is enabled, else the dtype of the weights.
torch::ScalarType compute_type(const torch::Tensor& weight);

// The precision of a thread's matmuls: its FP8 context. Null: matmuls are torch's, not FP8.
using MatmulPrecision = std::shared_ptr<octavo::torch::fp8::Context>;
[[nodiscard]] MatmulPrecision matmul_precision();

// Sets this thread's precision for the lifetime of the object.
class MatmulPrecisionScope {
 public:
  explicit MatmulPrecisionScope(const MatmulPrecision& context);
  ~MatmulPrecisionScope();
  MatmulPrecisionScope(const MatmulPrecisionScope&) = delete;
  MatmulPrecisionScope& operator=(const MatmulPrecisionScope&) = delete;

 private:
  MatmulPrecision before_;
};

// Is called with a part of the model before a forward pass uses its parameters, because their update may
// still be running.
using WeightGate = std::function<void(const torch::nn::Module&)>;

}  // namespace octavo_train
