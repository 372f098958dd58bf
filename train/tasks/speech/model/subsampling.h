// The first layers of the encoder, which reduce 8 frames of features to 1. The tensors have the names of the
// published weights.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/speech/config/model_settings.h"

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <vector>

namespace octavo_train {

class SubsamplingImpl : public torch::nn::Module {
 public:
  explicit SubsamplingImpl(const SpeechModelSettings& settings);

  // Reduces features [batch, T, bands] to [batch, subsampled(T), width]. `lengths` (int64 [batch], on the
  // device) are the frames of each clip without padding.
  torch::Tensor forward(const torch::Tensor& features, const torch::Tensor& lengths);

 private:
  bool recompute_;
  std::vector<torch::Tensor> convolutions_;  // weight and bias of each, in order
  torch::Tensor weight_, bias_;              // of the projection
};
TORCH_MODULE(Subsampling);

}  // namespace octavo_train
