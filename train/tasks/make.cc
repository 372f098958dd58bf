// Creates the listed tasks.
// SPDX-License-Identifier: MIT
#include "train/config/task_config.h"
#include "train/task.h"
#include "train/tasks/list.h"

#include <torch/torch.h>

namespace octavo_train {
namespace {

template <class... Entry>
std::unique_ptr<Task> make_listed(std::string_view name, TaskList<Entry...> /*list*/) {
  std::unique_ptr<Task> out;
  ((Entry::config().name == name ? void(out = Entry::make()) : void()), ...);
  return out;
}

}  // namespace

std::unique_ptr<Task> make_task(std::string_view name) {
  std::unique_ptr<Task> out = make_listed(name, Tasks{});
  TORCH_CHECK(out != nullptr, "there is no task of the name ", name);
  return out;
}

}  // namespace octavo_train
