// SPDX-License-Identifier: MIT
#include "train/nn/residual.h"

#include "train/nn/accumulation_type.h"
#include "train/nn/fused.h"
#include "train/nn/residual_fused.h"

#include <torch/torch.h>

namespace octavo_train {

torch::Tensor layer_norm(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                         double eps) {
  if (norm_is_fusible(x, weight)) return layer_norm_fused(x, weight, bias, eps);
  const NoAutocast no_autocast;
  const auto type = accumulation_type(x);
  return torch::layer_norm(x.to(type), {x.size(-1)}, weight.to(type), bias.to(type), eps).to(x.scalar_type());
}

std::pair<torch::Tensor, torch::Tensor> add_norm(const torch::Tensor& x, const torch::Tensor& y, double scale,
                                                 const torch::Tensor& weight, const torch::Tensor& bias,
                                                 double eps, const Drop& drop) {
  if (norm_is_fusible(x, weight) && y.sizes() == x.sizes() && y.scalar_type() == x.scalar_type())
    return add_norm_fused(x, y, scale, weight, bias, eps, drop);
  const NoAutocast no_autocast;
  const torch::Tensor sum = torch::add(x, dropout(y, drop), scale);
  return {sum, layer_norm(sum, weight, bias, eps)};
}

torch::Tensor silu_dropout(const torch::Tensor& x, const Drop& drop) {
  if (fusible(x)) return silu_dropout_fused(x, drop);
  return dropout(torch::silu(x), drop);
}

}  // namespace octavo_train
