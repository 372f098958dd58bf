// The first weights of a run from another one: parameters and buffers of a run, a checkpoint or a safetensors
// file take the places of the initial ones, by name. Nothing else is taken over: no optimizer states, no
// step, no sampler.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/checkpoint/reinitialized_layers.h"
#include "train/config/init_settings.h"
#include "train/nn/named_tensors.h"

#include <octavo/status.h>

#include <cstdint>
#include <string>
#include <vector>

namespace octavo::train {

struct WarmStart {
  std::string file;                    // the safetensors file
  std::int64_t used = 0;               // tensors of the model that have its values
  std::int64_t converted = 0;          // of them, those of another dtype in the file
  std::vector<std::string> missing;    // of the model: they keep their initial values
  std::vector<std::string> left_over;  // of the file, as it calls them
  std::string renewed;                 // which parts begin anew, and why; else empty
  std::vector<std::string> skipped;    // why newer checkpoints of the run were not taken

  // Lines for the console: what was taken, and with init_strict: false what was not.
  [[nodiscard]] std::vector<std::string> lines() const;
};

// `model`: its parameters and buffers. Floating-point types are converted into each other, integers too. A
// name that is missing or left over is an error unless init.strict is false; a wrong shape, a rule of
// init.rename without effect and a file with nothing for the model always are. Where the file is of another
// vocabulary, `fresh` begin anew. On an error nothing has changed. REQUIRES: init.from.
Result<WarmStart> warm_start(const InitSettings& init, const NamedTensors& model,
                             const FreshParts& fresh = {});

}  // namespace octavo::train
