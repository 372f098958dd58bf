// A trained model for other programs. A task that can write one has a function `export_model` in its entry;
// one that has none says where its weights are. No LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/formats/safetensors.h"

#include <octavo/status.h>

#include <span>
#include <string>

namespace octavo::train {

struct ModelExport {
  const Settings& settings;               // of the run
  const std::string& checkpoint;          // its folder
  std::span<const TensorSource> weights;  // under the model's names; those in floating point are in fp32
  const std::string& target;              // a path; whatever is there may be replaced
};

// As the task of the settings does it. REQUIRES: that is one of declared_tasks().
Status export_model(const ModelExport& request);

}  // namespace octavo::train
