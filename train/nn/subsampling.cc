// SPDX-License-Identifier: MIT
#include "train/nn/subsampling.h"

#include "train/nn/accumulation_type.h"
#include "train/nn/fused.h"
#include "train/nn/subsampling_fused.h"

#include <torch/torch.h>

namespace octavo_train {
namespace {

torch::Tensor masked(const torch::Tensor& x, const torch::Tensor& lengths) {
  return x * length_mask(lengths, x.size(2)).unsqueeze(1).unsqueeze(3).to(x.scalar_type());
}

}  // namespace

torch::Tensor subsample(const torch::Tensor& features, const torch::Tensor& lengths,
                        const SubsamplingWeights& weights) {
  TORCH_CHECK(features.dim() == 3, "subsample: features are ", features.sizes(),
              ", expected [batch, T, bands]");
  TORCH_CHECK(lengths.dim() == 1 && lengths.size(0) == features.size(0) &&
                  lengths.scalar_type() == torch::kInt64 && lengths.device() == features.device(),
              "subsample: lengths are ", lengths.scalar_type(), ' ', lengths.sizes(), " on ",
              lengths.device(), ", expected Long [", features.size(0), "] on ", features.device());
  if (subsampling_is_fusible(features, weights)) return subsample_fused(features, lengths, weights);
  const NoAutocast no_autocast;
  torch::Tensor x = features.unsqueeze(1), left = lengths;
  const auto convolved = [&](const torch::Tensor& weight, const torch::Tensor& bias) {
    const std::int64_t stride = weight.size(2) == 1 ? 1 : 2, groups = x.size(1) / weight.size(1);
    x = torch::conv2d(masked(x, left), weight.to(x.scalar_type()), bias.to(x.scalar_type()), stride,
                      weight.size(2) / 2, 1, groups);
    if (stride == 2) left = (left + 1).div(2, "floor");
  };
  convolved(weights.first, weights.first_bias);
  x = x.relu();
  for (const SubsamplingWeights::Stage& stage : weights.stages) {
    convolved(stage.depthwise, stage.depthwise_bias);
    convolved(stage.pointwise, stage.pointwise_bias);
    x = x.relu();
  }
  return masked(x, left).transpose(1, 2).flatten(2);  // order within a frame: channel, then band
}

}  // namespace octavo_train
