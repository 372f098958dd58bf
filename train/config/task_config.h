// What a task adds to a config: the keys that it and its models read, and the rules between them. Nothing
// here needs LibTorch, so that the command can check and print a config without it.
//
// train/tasks/list.h has the tasks; docs/guides/add_a_task.md shows how one is written.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/config.h"
#include "train/config/schema.h"

#include <octavo/status.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace octavo::train {

// A value that a key has where nobody gave it one, as YAML, instead of its default.
struct Default {
  std::string_view path;
  std::string value;
};

struct TaskConfig {
  std::string_view name;                       // `task: NAME`, and its folder in train/tasks/
  std::string_view meaning;                    // one sentence for docs/config.md
  std::string_view models;                     // what model.name takes, in words
  std::vector<std::string_view> metrics = {};  // of an evaluation, as Task::evaluation() names them
  std::string_view example;                    // a whole config, for docs/config.md
  // Whether `model.name: MODEL` is one of its models: then the task need not be named.
  bool (*takes)(std::string_view model);
  // `model.name` and everything else that the task and its models read, in any section. The keys of a section
  // lie together.
  std::vector<Key> (*keys)();
  // Rules between keys; errors name both places (clash() in checks.h).
  Status (*check)(const Config& config);
  // What a run needs and a config that is only printed may leave out.
  Status (*check_complete)(const Config& config);
  // Defaults that depend on what the config says; null: none. A config that is saved has their values.
  std::vector<Default> (*recipe)(const Config& config) = nullptr;
  bool limits_batches = false;  // has keys that limit a batch: per_device_train_batch_size may be auto
};

// All tasks, the standard one first. Defined beside their list: train/tasks/declared.cc.
std::span<const TaskConfig> declared_tasks();
// Null where there is none of that name.
const TaskConfig* find_task(std::string_view name);

}  // namespace octavo::train
