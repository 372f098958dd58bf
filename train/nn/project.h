// The one door for products of activations with weights. A model calls these for each of them, so that the
// precision of such products is chosen here and not in every model. Products of activations with each other
// (attention) do not pass here.
//
// A weight is [in, out]: the last dimension of the activations is summed over.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

namespace octavo::train {

// x [.., in] with weight [in, out]: [.., out].
inline torch::Tensor project(const torch::Tensor& x, const torch::Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2 && x.dim() >= 1 && x.size(-1) == weight.size(0), "project: got activations ",
              x.sizes(), " and a weight ", weight.sizes(), ", expected [.., in] and [in, out]");
  return x.matmul(weight);
}

// A weight for each of a number of groups (heads, experts): x [groups, rows, in] with weight
// [groups, in, out]: [groups, rows, out].
inline torch::Tensor project_batched(const torch::Tensor& x, const torch::Tensor& weight) {
  TORCH_CHECK(weight.dim() == 3 && x.dim() == 3 && x.size(0) == weight.size(0) && x.size(2) == weight.size(1),
              "project_batched: got activations ", x.sizes(), " and weights ", weight.sizes(),
              ", expected [groups, rows, in] and [groups, in, out]");
  return x.bmm(weight);
}

}  // namespace octavo::train
