// The one door for products of activations with weights. A model calls these for each of them, so that the
// precision of such products is chosen here and not in every model: they are torch's, or in FP8 where this
// thread has a context of it (product_scope.h). Products of activations with each other (attention) do not
// pass here.
//
// A weight is [in, out]: the last dimension of the activations is summed over. It may be a view of a
// parameter.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

namespace octavo::train {

// x [.., in] with weight [in, out]: [.., out].
torch::Tensor project(const torch::Tensor& x, const torch::Tensor& weight);

// A weight for each of a number of groups (heads, experts): x [groups, rows, in] with weight
// [groups, in, out]: [groups, rows, out].
torch::Tensor project_batched(const torch::Tensor& x, const torch::Tensor& weight);
// The same for one x [rows, in] of all groups.
torch::Tensor project_to_groups(const torch::Tensor& x, const torch::Tensor& weight);
// The same, summed over the groups: [rows, out].
torch::Tensor project_and_sum(const torch::Tensor& x, const torch::Tensor& weight);

}  // namespace octavo::train
