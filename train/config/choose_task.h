// Which task a config means, before its keys are known: the one that it names, or the one that has its model.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/node.h"

#include <octavo/status.h>

#include <array>
#include <span>

namespace octavo::train {

struct TaskConfig;

// One level of precedence.
struct Words {
  const Source* source;
  std::span<const YamlNode> maps;
};

// Later levels override. Nothing given: the first of declared_tasks(). An unknown task or model is an error
// with its place.
Result<const TaskConfig*> choose_task(const std::array<Words, 2>& levels);

}  // namespace octavo::train
