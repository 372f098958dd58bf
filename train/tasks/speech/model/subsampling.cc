// SPDX-License-Identifier: MIT
#include "train/tasks/speech/model/subsampling.h"

#include "train/nn/recompute_rows.h"
#include "train/nn/subsampling.h"
#include "train/tasks/speech/model/products.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>

namespace octavo_train {
namespace {

// The maximum number of elements in the largest activation (the output of the first convolution) of the clips
// that are recomputed together. It corresponds to 16 clips of 20 s, with 256 channels and 128 bands.
constexpr std::int64_t kLargestPart = std::int64_t{1} << 28;

SubsamplingWeights weights_of(const std::vector<torch::Tensor>& c) {
  return {c[0], c[1], {{{c[2], c[3], c[4], c[5]}, {c[6], c[7], c[8], c[9]}}}};
}

torch::Tensor subsampled_features(const std::vector<torch::Tensor>& inputs,
                                  const std::vector<torch::Tensor>& weights) {
  return subsample(inputs[0], inputs[1], weights_of(weights));
}

}  // namespace

SubsamplingImpl::SubsamplingImpl(const SpeechModelSettings& settings)
    : recompute_(settings.checkpoint_encoder) {
  const std::int64_t channels = settings.subsampling_channels;
  auto layers = std::make_shared<torch::nn::Module>("Layers");
  const auto convolution = [&](int number, const torch::nn::Conv2dOptions& options) {
    const torch::nn::Conv2d conv(options);
    layers->register_module(std::to_string(number), conv.ptr());
    convolutions_.insert(convolutions_.end(), {conv->weight, conv->bias});
  };
  // The module numbers in between belong to ReLU.
  convolution(0, torch::nn::Conv2dOptions(1, channels, 3));
  for (const int number : {2, 5}) {
    convolution(number, torch::nn::Conv2dOptions(channels, channels, 3).groups(channels));
    convolution(number + 1, torch::nn::Conv2dOptions(channels, channels, 1));
  }
  register_module("layers", layers);
  const torch::nn::Linear projection(channels * subsampled(settings.mel_bands), settings.width);
  register_module("linear", projection);
  weight_ = projection->weight;
  bias_ = projection->bias;
}

torch::Tensor SubsamplingImpl::forward(const torch::Tensor& features, const torch::Tensor& lengths) {
  const std::vector<torch::Tensor> inputs = {features.to(compute_type(weight_)), lengths};
  if (!recompute_) return weighted(subsampled_features(inputs, convolutions_), weight_, bias_);
  const std::int64_t of_a_clip =
      std::max<std::int64_t>(1, convolutions_[0].size(0) * features.size(1) * features.size(2) / 4);
  const std::int64_t at_once = std::max<std::int64_t>(1, kLargestPart / of_a_clip);
  return weighted(recompute_rows(subsampled_features, inputs, convolutions_, at_once), weight_, bias_);
}

}  // namespace octavo_train
