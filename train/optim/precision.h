// Mixed precision: the autocast scope of a forward pass, and dynamic loss scaling for float16.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"

#include <torch/types.h>

#include <nlohmann/json_fwd.hpp>

namespace octavo::train {

// Autocast to `dtype` on a device, for a scope; nothing for float32.
class AutocastScope {
 public:
  AutocastScope(const torch::Device& device, ComputeType dtype);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  torch::DeviceType device_;
  bool active_, before_;
  torch::ScalarType dtype_before_;
};

// Doubles every 2,000 good steps, halves at a bad one, as torch's GradScaler; it lives on the device, so no
// step waits for it. Without float16 it does nothing.
class LossScaler {
 public:
  LossScaler(const torch::Device& device, ComputeType compute_dtype);

  [[nodiscard]] bool active() const { return scale_.defined(); }
  [[nodiscard]] torch::Tensor scaled(const torch::Tensor& loss) const;
  // Undefined where it is not active.
  [[nodiscard]] const torch::Tensor& scale() const { return scale_; }
  void update(const torch::Tensor& skipped);

  void save(nlohmann::ordered_json& numbers) const;
  // A copy made before keeps what it had.
  void load(const nlohmann::ordered_json& numbers);

 private:
  torch::Tensor scale_, good_steps_;
};

}  // namespace octavo::train
