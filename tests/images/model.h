// A small image classifier: blocks of convolution, BatchNorm and ReLU, then a mean over the pixels and a
// projection to the classes.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/images/settings.h"

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <vector>

namespace octavo_train {

struct ConvBlockImpl : torch::nn::Module {
  ConvBlockImpl(std::int64_t in, std::int64_t out);
  torch::Tensor forward(const torch::Tensor& x);

  torch::nn::Conv2d conv;
  torch::nn::BatchNorm2d norm;
};
TORCH_MODULE(ConvBlock);

class ConvNetImpl : public torch::nn::Module {
 public:
  ConvNetImpl(const ConvNetSettings& settings, std::int64_t classes);

  // Maps images [rows, 1, size, size], with values from -1 to 1, to logits [rows, classes].
  torch::Tensor forward(torch::Tensor x);

 private:
  bool recompute_;
  std::vector<ConvBlock> blocks_;
  torch::Tensor head_, bias_;
};
TORCH_MODULE(ConvNet);

}  // namespace octavo_train
