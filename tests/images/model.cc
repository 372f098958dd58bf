// SPDX-License-Identifier: MIT
#include "tests/images/model.h"

#include "train/nn/recompute.h"
#include "train/nn/weight_matmul.h"

#include <torch/torch.h>

#include <cmath>
#include <string>

namespace octavo_train {

ConvBlockImpl::ConvBlockImpl(std::int64_t in, std::int64_t out)
    : conv(torch::nn::Conv2dOptions(in, out, 3).stride(2).padding(1).bias(false)), norm(out) {
  register_module("conv", conv);
  register_module("norm", norm);
}

torch::Tensor ConvBlockImpl::forward(const torch::Tensor& x) { return norm(conv(x)).relu(); }

ConvNetImpl::ConvNetImpl(const ConvNetSettings& settings, std::int64_t classes)
    : recompute_(settings.gradient_checkpointing) {
  for (std::int64_t i = 0; i < settings.n_block; ++i) {
    blocks_.emplace_back(i == 0 ? 1 : settings.width, settings.width);
    register_module("block" + std::to_string(i), blocks_.back());
  }
  const double deviation = 1 / std::sqrt(static_cast<double>(settings.width));
  head_ = register_parameter("head", torch::empty({settings.width, classes}).normal_(0, deviation));
  bias_ = register_parameter("bias", torch::zeros({classes}));
}

torch::Tensor ConvNetImpl::forward(torch::Tensor x) {
  for (ConvBlock& block : blocks_) {
    const Segment segment = [block](const std::vector<torch::Tensor>& in) mutable {
      return block->forward(in[0]);
    };
    // The buffers are passed so that recomputing the block does not update the running statistics again.
    x = recompute_ ? recompute(segment, {x}, block->buffers()) : segment({x});
  }
  return weight_matmul(x.mean({2, 3}), head_) + bias_;
}

}  // namespace octavo_train
