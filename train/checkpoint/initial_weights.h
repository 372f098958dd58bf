// Initializes a run's weights from another run, a checkpoint or a safetensors file: parameters and buffers
// replace the initial values by name. Nothing else is loaded: no optimizer states, no step, no sampler state.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/settings.h"
#include "train/nn/named_tensors.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace octavo_train {

struct RenamedTensor;  // train/checkpoint/tensors.h

// Model parts that keep their initial values when the weights come from a model with another vocabulary. The
// other parts are loaded.
struct ReinitializedLayers {
  std::string what;                                    // "decoder and joint"
  std::vector<std::string> by_token;                   // tensors with a row for every token
  std::function<bool(const std::string& name)> holds;  // returns true if a tensor belongs to these parts
};

// If a tensor of `by_token` has another number of rows in the file, removes the parts from both lists and
// returns a line for the console that says so. Otherwise returns nullopt.
std::optional<std::string> drop_reinitialized(const ReinitializedLayers& fresh,
                                              std::vector<RenamedTensor>& stored, NamedTensors& model);

struct InitialWeights {
  std::string file;                    // the safetensors file
  std::int64_t used = 0;               // model tensors that were loaded
  std::int64_t converted = 0;          // number of loaded tensors whose dtype in the file differs
  std::vector<std::string> missing;    // names in the model that keep their initial values
  std::vector<std::string> left_over;  // unused names of the file, before renaming
  std::string renewed;                 // a line about the parts that are reinitialized, and why; else empty
  std::vector<std::string> skipped;    // why newer checkpoints of the run were skipped

  // Returns lines for the console: what was loaded and, with init_strict: false, what was not.
  [[nodiscard]] std::vector<std::string> lines() const;
};

// Loads the weights that init.from names into `model`, its parameters and buffers. Floating-point types are
// converted into each other, and integer types too. A missing or unused name is an error unless init.strict
// is false. A wrong shape, a rule of init.rename without effect and a file without any tensor of the model
// are always errors. If the file has another vocabulary, the parts in `fresh` keep their initial values.
// After an error nothing has changed. REQUIRES: init.from.
Result<InitialWeights> load_initial_weights(const InitSettings& init, const NamedTensors& model,
                                            const ReinitializedLayers& fresh = {});

}  // namespace octavo_train
