// SPDX-License-Identifier: MIT
#include "train/optim/precision.h"

#include "train/nn/fake.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

namespace octavo_train {
namespace {

constexpr double kFirstScale = 65536.0;
constexpr double kGrowth = 2.0, kBackoff = 0.5;
constexpr std::int64_t kGrowthInterval = 2000;

}  // namespace

AutocastScope::AutocastScope(const torch::Device& device, ComputeType dtype)
    : device_(octavo::autocast_type(device.type())),
      active_(dtype != ComputeType::float32),
      before_(at::autocast::is_autocast_enabled(device_)),
      dtype_before_(at::autocast::get_autocast_dtype(device_)) {
  if (!active_) return;
  at::autocast::set_autocast_enabled(device_, true);
  at::autocast::set_autocast_dtype(device_,
                                   dtype == ComputeType::bfloat16 ? torch::kBFloat16 : torch::kFloat16);
  at::autocast::increment_nesting();
}

AutocastScope::~AutocastScope() {
  if (!active_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, before_);
  at::autocast::set_autocast_dtype(device_, dtype_before_);
}

LossScaler::LossScaler(const torch::Device& device, ComputeType compute_dtype) {
  if (compute_dtype != ComputeType::float16) return;
  scale_ = torch::full({1}, kFirstScale, torch::TensorOptions(torch::kFloat32).device(device));
  good_steps_ = torch::zeros({1}, torch::TensorOptions(torch::kInt32).device(device));
}

torch::Tensor LossScaler::scaled(const torch::Tensor& loss) const {
  return active() ? loss * scale_[0] : loss;
}

void LossScaler::update(const torch::Tensor& skipped) {
  if (!active()) return;
  const torch::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_, good_steps_, skipped.to(torch::kFloat32).view({1}), kGrowth, kBackoff,
                         kGrowthInterval);
}

void LossScaler::save(nlohmann::ordered_json& scalars) const {
  if (!active()) return;
  scalars["scale"] = scale_.item<float>();
  scalars["good_steps"] = good_steps_.item<int>();
}

void LossScaler::load(const nlohmann::ordered_json& scalars) {
  if (!active() || !scalars.contains("scale")) return;
  scale_ = torch::full_like(scale_, scalars.at("scale").get<float>());
  good_steps_ = torch::full_like(good_steps_, scalars.at("good_steps").get<int>());
}

}  // namespace octavo_train
