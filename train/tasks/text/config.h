// The keys of the models of the task `text`; TextEntry::config() has those of the task.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/task_config.h"
#include "train/tasks/text/settings.h"

#include <vector>

namespace octavo::train {

// Of BDH: its keys, and their rule.
std::vector<Key> bdh_keys();
Status check_bdh(const Config& config);

}  // namespace octavo::train
