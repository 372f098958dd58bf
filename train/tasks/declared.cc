// The config declarations of the listed tasks. Does not need LibTorch.
// SPDX-License-Identifier: MIT
#include "train/config/task_config.h"
#include "train/tasks/list.h"

#include <array>

namespace octavo_train {
namespace {

template <class... Entry>
std::array<TaskConfig, sizeof...(Entry)> configs(TaskList<Entry...> /*list*/) {
  return {Entry::config()...};
}

}  // namespace

std::span<const TaskConfig> declared_tasks() {
  static const auto all = configs(Tasks{});
  return all;
}

}  // namespace octavo_train
