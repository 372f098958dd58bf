// Mixed precision: the autocast scope of a forward pass, and dynamic loss scaling for float16.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/checkpoint/checkpoint.h"
#include "train/config/settings.h"
#include "train/nn/named_tensors.h"

#include <torch/types.h>

#include <nlohmann/json_fwd.hpp>

#include <string_view>

namespace octavo_train {

// Enables autocast to `dtype` on a device for a scope. Does nothing for float32.
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

// Scales the loss dynamically for float16. Like torch's GradScaler, the scale doubles after 2,000 good steps
// and halves after a bad one. It is in device memory, so the host never waits for it. For other types the
// scaler does nothing.
class LossScaler {
 public:
  LossScaler(const torch::Device& device, ComputeType compute_dtype);

  [[nodiscard]] bool active() const { return scale_.defined(); }
  [[nodiscard]] torch::Tensor scaled(const torch::Tensor& loss) const;
  // Returns an undefined tensor if the scaler is not active.
  [[nodiscard]] const torch::Tensor& scale() const { return scale_; }
  void update(const torch::Tensor& skipped);

  void save(nlohmann::ordered_json& scalars) const;
  // Assigns new tensors, so a copy of the scaler made earlier keeps its values.
  void load(const nlohmann::ordered_json& scalars);

 private:
  torch::Tensor scale_, good_steps_;
};

// The loss scale in a checkpoint.
class LossScaleComponent : public Checkpointable {
 public:
  explicit LossScaleComponent(LossScaler& scaler) : scaler_(scaler) {}  // which outlives it

  [[nodiscard]] std::string_view name() const override { return "loss_scale"; }
  void save(NamedTensors& /*tensors*/, nlohmann::ordered_json& scalars) const override {
    scaler_.save(scalars);
  }
  Result<Commit> load(const NamedTensors& /*tensors*/, const nlohmann::ordered_json& scalars) override {
    LossScaler loaded = scaler_;
    loaded.load(scalars);
    return Commit([this, loaded] { scaler_ = loaded; });
  }

 private:
  LossScaler& scaler_;
};

}  // namespace octavo_train
