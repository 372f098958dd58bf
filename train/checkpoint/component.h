// A part of a run that must survive: it has a name in the checkpoint, where its numbers are an object of
// state.json and its tensors a file NAME.safetensors. A new one is added to
// TrainingState (train/run/training_state.cc) and needs no edit elsewhere.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/nn/named_tensors.h"

#include <octavo/status.h>

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <string_view>

namespace octavo::train {

class Stateful {
 public:
  Stateful() = default;
  virtual ~Stateful() = default;
  Stateful(const Stateful&) = delete;
  Stateful& operator=(const Stateful&) = delete;

  // A word, the same for ever.
  [[nodiscard]] virtual std::string_view name() const = 0;
  // Adds to both. Tensors may be of any device.
  virtual void save(NamedTensors& tensors, nlohmann::ordered_json& numbers) const = 0;

  // Checks all of what was saved and changes nothing yet; the function does, and cannot fail. So a
  // checkpoint is loaded whole or not at all. Tensors are views of a file, good until the function returns.
  // May throw nlohmann::json::exception.
  using Commit = std::function<void()>;
  virtual Result<Commit> load(const NamedTensors& tensors, const nlohmann::ordered_json& numbers) = 0;
  // A checkpoint from before there was such a part has nothing of it: then load() is not called.
  [[nodiscard]] virtual bool may_be_missing() const { return false; }
};

}  // namespace octavo::train
