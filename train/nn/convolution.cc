// SPDX-License-Identifier: MIT
#include "train/nn/convolution.h"

#include "train/nn/accumulation_type.h"
#include "train/nn/convolution_fused.h"
#include "train/nn/fused.h"

#include <torch/torch.h>

namespace octavo_train {

torch::Tensor conv_module(const torch::Tensor& z, const torch::Tensor& lengths, const torch::Tensor& weight,
                          BatchNorm& norm, bool training) {
  const std::int64_t channels = weight.size(0), width = weight.size(2);
  TORCH_CHECK(z.dim() == 3 && z.size(2) == 2 * channels, "conv_module: activations are ", z.sizes(),
              ", expected [batch, T, ", 2 * channels, ']');
  TORCH_CHECK(width % 2 == 1, "conv_module: the kernel's width is ", width, ", expected an odd number");
  if (conv_is_fusible(z, weight, norm))
    return conv_module_fused(z, lengths, weight, norm, !training || norm.frozen);
  const NoAutocast no_autocast;
  const auto type = accumulation_type(z);
  const torch::Tensor gated =
      torch::glu(z.to(type), 2) * length_mask(lengths, z.size(1)).unsqueeze(2).to(type);
  const torch::Tensor mixed = torch::conv1d(gated.mT(), weight.to(type), {}, 1, (width - 1) / 2, 1,
                                            channels);  // [batch, channels, T]
  const bool update = training && !norm.frozen;
  const bool single = update && z.size(0) * z.size(1) == 1;  // torch would divide its variance by zero
  if (update) {
    const torch::NoGradGuard no_grad;
    norm.num_batches_tracked.add_(1);
    if (single) {
      norm.running_mean.lerp_(mixed.flatten().to(norm.running_mean.scalar_type()), norm.momentum);
      norm.running_var.mul_(1 - norm.momentum);
    }
  }
  const auto as = [&](const torch::Tensor& t) { return t.to(type); };
  const auto running = [&](const torch::Tensor& t) { return single ? torch::Tensor() : t; };
  const torch::Tensor normed =
      torch::batch_norm(mixed, as(norm.weight), as(norm.bias), running(norm.running_mean),
                        running(norm.running_var), update, norm.momentum, norm.eps, false);
  return torch::silu(normed).mT().contiguous().to(z.scalar_type());
}

}  // namespace octavo_train
