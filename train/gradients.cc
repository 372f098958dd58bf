// SPDX-License-Identifier: MIT
#include "gradients.h"

#include <torch/torch.h>

#include <utility>

namespace octavo::train {

GradientSums::GradientSums(NamedTensors parameters, std::int64_t passes)
    : parameters_(std::move(parameters)), filled_(parameters_.size(), false) {
  for (const auto& [name, param] : parameters_) {
    bytes_ += static_cast<std::int64_t>(param.nbytes());
    const bool own = passes > 1 && param.scalar_type() != torch::kFloat32;
    sums_.push_back(own ? torch::zeros_like(param, torch::TensorOptions(torch::kFloat32)) : torch::Tensor());
    if (own) sum_bytes_ += static_cast<std::int64_t>(sums_.back().nbytes());
  }
  bytes_ += sum_bytes_;
}

void GradientSums::clear() {
  filled_.assign(parameters_.size(), false);
  for (auto& [name, param] : parameters_) param.mutable_grad().reset();
}

void GradientSums::pass_done() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    torch::Tensor& grad = parameters_[i].second.mutable_grad();
    if (!sums_[i].defined() || !grad.defined()) continue;
    if (filled_[i])
      sums_[i].add_(grad);
    else
      sums_[i].copy_(grad);
    filled_[i] = true;
    // Torch would add the next pass to a remaining gradient, in bf16.
    grad.reset();
  }
}

void GradientSums::finish() {
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    if (filled_[i]) parameters_[i].second.mutable_grad() = sums_[i];
  }
}

}  // namespace octavo::train
