// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/tasks/entry.h"

#include <memory>

namespace octavo_train {

struct ModelExport;
struct TaskConfig;
class Task;

struct SpeechEntry {
  static TaskConfig config();
  static std::unique_ptr<Task> make();
  static Status export_model(const ModelExport& request);
};

}  // namespace octavo_train
