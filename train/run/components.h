// Components of a checkpoint (train/checkpoint/component.h): the model, the loss scale and the optimizer.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/checkpoint/component.h"
#include "train/optim/optimizer.h"
#include "train/optim/precision.h"

namespace octavo::train {

inline constexpr std::string_view kModelPart = "model", kOptimizerPart = "optimizer";

// Parameters and buffers, such as the statistics of a BatchNorm.
class ModelPart : public Stateful {
 public:
  explicit ModelPart(NamedTensors tensors) : tensors_(std::move(tensors)) {}

  [[nodiscard]] std::string_view name() const override { return kModelPart; }
  void save(NamedTensors& tensors, nlohmann::ordered_json& numbers) const override;
  Result<Commit> load(const NamedTensors& tensors, const nlohmann::ordered_json& numbers) override;

 private:
  NamedTensors tensors_;
};

class ScalerPart : public Stateful {
 public:
  explicit ScalerPart(LossScaler& scaler) : scaler_(scaler) {}  // which outlives it

  [[nodiscard]] std::string_view name() const override { return "loss_scale"; }
  void save(NamedTensors& tensors, nlohmann::ordered_json& numbers) const override;
  Result<Commit> load(const NamedTensors& tensors, const nlohmann::ordered_json& numbers) override;

 private:
  LossScaler& scaler_;
};

// StepOptimizer::load() checks everything and then changes it, and load() here does the same, so this must be
// the last component of a run.
class OptimizerPart : public Stateful {
 public:
  explicit OptimizerPart(StepOptimizer& optimizer) : optimizer_(optimizer) {}  // which outlives it

  [[nodiscard]] std::string_view name() const override { return kOptimizerPart; }
  void save(NamedTensors& tensors, nlohmann::ordered_json& numbers) const override;
  Result<Commit> load(const NamedTensors& tensors, const nlohmann::ordered_json& numbers) override;

 private:
  StepOptimizer& optimizer_;
};

}  // namespace octavo::train
