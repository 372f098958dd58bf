// The config declarations of the listed tasks. Does not need LibTorch.
// SPDX-License-Identifier: MIT
#include "train/config/task_config.h"
#include "train/tasks/entry.h"

#include <array>

namespace octavo_train {

std::span<const TaskConfig> declared_tasks() {
  static const std::array all = {
#define OCTAVO_TASK(name) name##_task_config(),
#include "train/tasks/list.h"
  };
  return all;
}

}  // namespace octavo_train
