// SPDX-License-Identifier: MIT
#pragma once

#include "train/tasks/entry.h"

#include <memory>

namespace octavo::train {

struct TaskConfig;
class Task;

struct SpeechEntry {
  static TaskConfig config();
  static std::unique_ptr<Task> make();
};

}  // namespace octavo::train
