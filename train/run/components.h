// Components of a checkpoint (train/checkpoint/component.h): the model, the loss scale and the optimizer.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/checkpoint/checkpoint.h"
#include "train/optim/optimizer.h"
#include "train/optim/precision.h"

namespace octavo_train {

inline constexpr std::string_view kModelComponent = "model", kOptimizerComponent = "optimizer";

// Parameters and buffers, such as the statistics of a BatchNorm.
class ModelComponent : public Checkpointable {
 public:
  explicit ModelComponent(NamedTensors tensors) : tensors_(std::move(tensors)) {}

  [[nodiscard]] std::string_view name() const override { return kModelComponent; }
  void save(NamedTensors& tensors, nlohmann::ordered_json& numbers) const override;
  Result<Commit> load(const NamedTensors& tensors, const nlohmann::ordered_json& numbers) override;

 private:
  NamedTensors tensors_;
};

class LossScaleComponent : public Checkpointable {
 public:
  explicit LossScaleComponent(LossScaler& scaler) : scaler_(scaler) {}  // which outlives it

  [[nodiscard]] std::string_view name() const override { return "loss_scale"; }
  void save(NamedTensors& tensors, nlohmann::ordered_json& numbers) const override;
  Result<Commit> load(const NamedTensors& tensors, const nlohmann::ordered_json& numbers) override;

 private:
  LossScaler& scaler_;
};

// StepOptimizer::load() checks everything and then changes it, and load() here does the same, so this must be
// the last component of a run.
class OptimizerComponent : public Checkpointable {
 public:
  explicit OptimizerComponent(StepOptimizer& optimizer) : optimizer_(optimizer) {}  // which outlives it

  [[nodiscard]] std::string_view name() const override { return kOptimizerComponent; }
  void save(NamedTensors& tensors, nlohmann::ordered_json& numbers) const override;
  Result<Commit> load(const NamedTensors& tensors, const nlohmann::ordered_json& numbers) override;

 private:
  StepOptimizer& optimizer_;
};

}  // namespace octavo_train
