// Attention with relative positions, as Transformer-XL has it.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/dropout.h"

#include <torch/types.h>

namespace octavo::train {

// For q, k and v [batch, T, heads, size], all three in one dtype: [batch, T, heads * size] in it. The score
// of query i and key j is ((q_i + bias_u) . k_j + (q_i + bias_v) . p_(i-j)) / sqrt(size), where row r of
// `positions` [2 T - 1, heads, size] is p of i - j = T - 1 - r, and the biases are [heads, size]. Queries see
// the keys before their row's length (int64 [batch], on the device). A query at or beyond it sees nothing and
// gives zeros. Probabilities are dropped as those of sample draw * heads + head, that of
// query i and key j as element 65536 i + j: a clip's mask does not depend on the batch that it is in.
torch::Tensor relative_attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                 const torch::Tensor& positions, const torch::Tensor& bias_u,
                                 const torch::Tensor& bias_v, const torch::Tensor& lengths, const Drop& drop);

}  // namespace octavo::train
