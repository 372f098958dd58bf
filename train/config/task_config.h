// Declares what a task adds to a config: the keys that it and its models read, and the rules between them.
// Nothing here needs LibTorch, so that the `octavo` command can check and print a config without it.
//
// The tasks are listed in train/tasks/list.h; docs/guides/add_a_task.md shows how to write a task.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/config.h"
#include "train/config/schema.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo_train {

// A task's default for a key, as YAML. It replaces the key's own default.
struct Default {
  std::string_view path;
  std::string value;
};

struct TaskConfig {
  std::string_view name;                       // `task: NAME`, and its folder in train/tasks/
  std::string_view meaning;                    // one sentence for docs/config.md
  std::string_view models;                     // what model.name accepts, as text for messages
  std::vector<std::string_view> metrics = {};  // metrics of an evaluation, as in Task::summarize()
  std::string_view example;                    // a complete config for docs/config.md
  // Returns true if `model.name: MODEL` is one of the task's models. A config with such a model need not name
  // the task.
  bool (*takes)(std::string_view model);
  // Returns `model.name` and all other keys that the task and its models read, in any section. The keys of a
  // section are contiguous.
  std::vector<Key> (*keys)();
  // Checks the rules between keys. Errors name both places (clash_error() in checks.h).
  Status (*check)(const Config& config);
  // Checks for values that a run needs but a config that is only printed may omit.
  Status (*check_complete)(const Config& config);
  // Returns defaults that depend on the config's values; null: the task has none. A saved config contains
  // their values.
  std::vector<Default> (*recipe)(const Config& config) = nullptr;
  bool limits_batches = false;  // has keys that limit a batch: per_device_train_batch_size may be auto
};

// Returns all tasks, the default task first. Defined in train/tasks/declared.cc.
std::span<const TaskConfig> declared_tasks();
// Returns null if no task has that name.
const TaskConfig* find_task(std::string_view name);

}  // namespace octavo_train
