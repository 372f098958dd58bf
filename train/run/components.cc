// SPDX-License-Identifier: MIT
#include "train/run/components.h"

#include "train/checkpoint/tensor_files.h"
#include "train/optim/optimizer_factories.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>

namespace octavo::train {

using Json = nlohmann::ordered_json;

void ModelPart::save(NamedTensors& tensors, Json& /*numbers*/) const {
  tensors.insert(tensors.end(), tensors_.begin(), tensors_.end());
}

Result<Stateful::Commit> ModelPart::load(const NamedTensors& tensors, const Json& /*numbers*/) {
  if (const std::string differ = differences(tensors, tensors_); !differ.empty()) {
    return Status::invalid(
        "its weights are of another model or precision: " + differ +
        "; use the model and compute_dtype it was saved with, or start in another output_dir" +
        kConvertAdvice);
  }
  return Commit([this, tensors] { copy_tensors(tensors, tensors_); });
}

void ScalerPart::save(NamedTensors& /*tensors*/, Json& numbers) const { scaler_.save(numbers); }

Result<Stateful::Commit> ScalerPart::load(const NamedTensors& /*tensors*/, const Json& numbers) {
  LossScaler loaded = scaler_;
  loaded.load(numbers);
  return Commit([this, loaded] { scaler_ = loaded; });
}

void OptimizerPart::save(NamedTensors& tensors, Json& numbers) const { optimizer_.save(tensors, numbers); }

Result<Stateful::Commit> OptimizerPart::load(const NamedTensors& tensors, const Json& numbers) {
  if (Status bad = optimizer_.load(tensors, numbers); !bad.ok()) return bad;
  return Commit([] {});
}

}  // namespace octavo::train
