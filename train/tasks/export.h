// Exports a trained model for other programs. A task that supports this has a line OCTAVO_TASK_EXPORT in
// list.h. For other tasks, the error names the file with the weights. Does not need LibTorch.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/settings.h"
#include "train/formats/safetensors.h"

#include <span>
#include <string>

namespace octavo_train {

struct ModelExport {
  const Settings& settings;               // the run's settings
  const std::string& checkpoint;          // the checkpoint's folder
  std::span<const TensorSource> weights;  // named as in the model; floating-point tensors are in fp32
  const std::string& target;              // a path; existing files there may be replaced
};

// Exports the model with the function of the settings' task. REQUIRES: the task is one of declared_tasks().
Status export_model(const ModelExport& request);

}  // namespace octavo_train
