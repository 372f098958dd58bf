// Multi-head attention with relative positions, as in Transformer-XL.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"

#include <torch/types.h>

namespace octavo_train {

// Returns [batch, T, heads * size] for q, k and v [batch, T, heads, size]; all four have one dtype. The score
// of query i and key j is ((q_i + bias_u) . k_j + (q_i + bias_v) . p_(i-j)) / sqrt(size), where row r of
// `positions` [2 T - 1, heads, size] is p of i - j = T - 1 - r, and the biases are [heads, size]. Queries
// attend to the keys before their row's length (`lengths`, int64 [batch], on the device). A query at or
// beyond its row's length attends to nothing, and its output is zero. Dropout of the probabilities uses the
// sample number drop.pass.samples[row] * heads + head, and the element number 65536 i + j for query i and key
// j, so that a clip's mask does not depend on its batch.
torch::Tensor relative_attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                 const torch::Tensor& positions, const torch::Tensor& bias_u,
                                 const torch::Tensor& bias_v, const torch::Tensor& lengths, const Drop& drop);

}  // namespace octavo_train
