// The single entry point for matmuls of activations with weights. Models call these functions for every such
// matmul, so that its precision is chosen here and not in every model: torch's matmul, or an FP8 matmul if
// this thread has an FP8 context (matmul_precision.h). Matmuls of activations with each other (attention) do
// not use these functions.
//
// A weight is [in, out]: the last dimension of the activations is summed over. A weight may be a view of a
// parameter.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

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

}  // namespace octavo_train
