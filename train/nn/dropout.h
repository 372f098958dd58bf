// Dropout whose mask depends only on (seed, step, sample, layer, element). The mask is the same wherever a
// sample lies in a batch, on every device and for any number of processes (octavo/dropout.h). It does not use
// torch's random generators. The backward pass recomputes the mask, so no mask is stored.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace octavo_train {

// The values that the masks of a forward pass depend on, besides the layer.
struct DropoutKey {
  std::uint64_t seed = 0, step = 0;
  torch::Tensor samples;  // sample numbers, int64 [batch], on the activations' device
};

// Returns x with some elements dropped and the others divided by 1 - probability (rounded to a multiple of
// 2^-16), as a contiguous tensor. Returns x itself if not training or if the probability is 0; `pass` is not
// read then. `dim` is x's dimension of samples. `layer` distinguishes the dropouts of a model. If `pitch` is
// not 0, each run of x's last dimension begins at a multiple of `pitch` in the numbering of the sample's
// elements, so that the mask does not depend on the padding of the last dimension.
//
// float32, bfloat16 and float16 on a device that Octavo has code for need one read and one write of memory.
// For other types and devices the mask is computed on the CPU and copied: slow, but the same elements are
// dropped.
torch::Tensor dropout(const torch::Tensor& x, double probability, bool training, const DropoutKey& pass,
                      std::uint32_t layer, std::int64_t dim = 0, std::int64_t pitch = 0);

// Returns true if dropout() with these arguments drops elements. Throws if the arguments are invalid.
bool check_dropout(const torch::Tensor& x, double probability, bool training, const DropoutKey& pass,
                   std::int64_t dim = 0);

// The dropout arguments of a function that contains a dropout.
struct Drop {
  double probability;
  bool training;
  const DropoutKey& pass;
  std::uint32_t layer;
};
inline torch::Tensor dropout(const torch::Tensor& x, const Drop& drop, std::int64_t dim = 0) {
  return dropout(x, drop.probability, drop.training, drop.pass, drop.layer, dim);
}

}  // namespace octavo_train
