// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/entry.h"

#include <memory>

namespace octavo_train {

struct TaskConfig;
class Task;

struct ImagesEntry {
  static TaskConfig config();           // config.cc, without LibTorch
  static std::unique_ptr<Task> make();  // task.cc
};

}  // namespace octavo_train
