// Declares the functions that each task of list.h defines. The first is compiled without LibTorch, because a
// config is checked without it.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <memory>

namespace octavo_train {

struct ModelExport;
struct TaskConfig;
class Task;

#define OCTAVO_TASK(name)          \
  TaskConfig name##_task_config(); \
  std::unique_ptr<Task> make_##name##_task();
#define OCTAVO_TASK_EXPORT(name) Status export_##name##_task(const ModelExport& request);
#include "train/tasks/list.h"

}  // namespace octavo_train
