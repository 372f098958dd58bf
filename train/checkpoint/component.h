// A part of a run that is saved in checkpoints. It has a name in the checkpoint: its numbers are an object of
// that name in state.json, and its tensors are a file NAME.safetensors. A new part is added to TrainingState
// (train/run/training_state.cc) and needs no edit elsewhere.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/nn/named_tensors.h"

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <string_view>

namespace octavo_train {

class Checkpointable {
 public:
  Checkpointable() = default;
  virtual ~Checkpointable() = default;
  Checkpointable(const Checkpointable&) = delete;
  Checkpointable& operator=(const Checkpointable&) = delete;

  // Returns the part's name in checkpoints, a single word that must never change.
  [[nodiscard]] virtual std::string_view name() const = 0;
  // Adds the part's state to both arguments. Tensors may be on any device.
  virtual void save(NamedTensors& tensors, nlohmann::ordered_json& numbers) const = 0;

  // Checks everything that was saved and changes nothing yet. The returned function applies it and cannot
  // fail, so a checkpoint is loaded completely or not at all. The tensors are views of a file that stay valid
  // until the function returns. May throw nlohmann::json::exception.
  using Commit = std::function<void()>;
  virtual Result<Commit> load(const NamedTensors& tensors, const nlohmann::ordered_json& numbers) = 0;
  // Returns true if older checkpoints may lack this part. For such a checkpoint load() is not called.
  [[nodiscard]] virtual bool is_optional() const { return false; }
};

}  // namespace octavo_train
