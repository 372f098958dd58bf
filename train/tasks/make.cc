// Creates the listed tasks.
// SPDX-License-Identifier: MIT
#include "train/task.h"
#include "train/tasks/entry.h"

#include <torch/torch.h>

namespace octavo_train {

std::unique_ptr<Task> make_task(std::string_view name) {
  std::unique_ptr<Task> out;
#define OCTAVO_TASK(task) \
  if (name == #task) out = make_##task##_task();
#include "train/tasks/list.h"
  TORCH_CHECK(out != nullptr, "there is no task of the name ", name);
  return out;
}

}  // namespace octavo_train
