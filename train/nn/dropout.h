// Dropout whose mask depends only on (seed, step, sample, layer, element): the same wherever a sample lies in
// a batch, on any device and for any number of processes (octavo/dropout.h). It takes nothing from torch's
// generators and keeps no mask for the backward pass, which makes it again.
// SPDX-License-Identifier: MIT
#pragma once

#include <torch/types.h>

#include <cstdint>

namespace octavo::train {

// What the masks of a forward pass depend on, besides the layer.
struct DropoutPass {
  std::uint64_t seed = 0, step = 0;
  torch::Tensor samples;  // the number of each sample of the batch: int64 [batch], where the activations are
};

// x with elements dropped and the others divided by 1 - probability (rounded to a multiple of 2^-16), as a
// contiguous tensor; x itself where it is not training or the probability is 0, and then the pass is not
// looked at. `dim` is the dimension of x that counts samples; `layer` tells the dropouts of a model apart.
// With a pitch, each run of x's last dimension begins at a multiple of it among the numbers of the sample's
// elements, so that the mask does not depend on how far the last dimension is padded.
//
// float32, bfloat16 and float16 on a device for which Octavo has code take one pass over memory. For others
// the mask is made on the CPU and copied: slow, the same elements.
torch::Tensor dropout(const torch::Tensor& x, double probability, bool training, const DropoutPass& pass,
                      std::uint32_t layer, std::int64_t dim = 0, std::int64_t pitch = 0);

// Whether dropout() with these arguments drops anything; an error where it would be one.
bool check_dropout(const torch::Tensor& x, double probability, bool training, const DropoutPass& pass,
                   std::int64_t dim = 0);

// The dropout of a function that has one inside.
struct Drop {
  double probability;
  bool training;
  const DropoutPass& pass;
  std::uint32_t layer;
};
inline torch::Tensor dropout(const torch::Tensor& x, const Drop& drop, std::int64_t dim = 0) {
  return dropout(x, drop.probability, drop.training, drop.pass, drop.layer, dim);
}

}  // namespace octavo::train
