// Determines the task of a config before its keys are looked up: the task that the config names, or the task
// that has its model.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/node.h"

#include <array>
#include <span>

namespace octavo_train {

struct TaskConfig;

// The mappings of one level of precedence: the file or the command line.
struct Words {
  const Source* source;
  std::span<const YamlNode> maps;
};

// Returns the task of a config. Later levels override earlier levels. If neither a task nor a model is given,
// it is the first of declared_tasks(). The error for an unknown task or model contains its place.
Result<const TaskConfig*> choose_task(const std::array<Words, 2>& levels);

}  // namespace octavo_train
