// SPDX-License-Identifier: MIT
#include "train/run/components.h"

#include "train/base/status.h"
#include "train/checkpoint/tensors.h"
#include "train/optim/optimizer.h"

#include <torch/torch.h>

#include <nlohmann/json.hpp>

namespace octavo_train {

using Json = nlohmann::ordered_json;

void ModelComponent::save(NamedTensors& tensors, Json& /*numbers*/) const {
  tensors.insert(tensors.end(), tensors_.begin(), tensors_.end());
}

Result<Checkpointable::Commit> ModelComponent::load(const NamedTensors& tensors, const Json& /*numbers*/) {
  if (const std::string differ = differences(tensors, tensors_); !differ.empty()) {
    return Status::invalid(
        "its weights are of another model or precision: " + differ +
        "; use the model and compute_dtype it was saved with, or start in another output_dir" +
        kConvertAdvice);
  }
  return Commit([this, tensors] { copy_tensors(tensors, tensors_); });
}

void LossScaleComponent::save(NamedTensors& /*tensors*/, Json& numbers) const { scaler_.save(numbers); }

Result<Checkpointable::Commit> LossScaleComponent::load(const NamedTensors& /*tensors*/,
                                                        const Json& numbers) {
  LossScaler loaded = scaler_;
  loaded.load(numbers);
  return Commit([this, loaded] { scaler_ = loaded; });
}

void OptimizerComponent::save(NamedTensors& tensors, Json& numbers) const {
  optimizer_.save(tensors, numbers);
}

Result<Checkpointable::Commit> OptimizerComponent::load(const NamedTensors& tensors, const Json& numbers) {
  RETURN_IF_ERROR(optimizer_.load(tensors, numbers));
  return Commit([] {});
}

}  // namespace octavo_train
