// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/entry.h"

#include <memory>

namespace octavo_train {

struct TaskConfig;
class Task;

struct TextEntry {
  static TaskConfig config();
  static std::unique_ptr<Task> make();
};

}  // namespace octavo_train
