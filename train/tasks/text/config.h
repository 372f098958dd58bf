// The config keys of the models of the task `text`. TextEntry::config() has the keys of the task itself.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/task_config.h"
#include "train/tasks/text/settings.h"

#include <vector>

namespace octavo_train {

// Return the keys of BDH, and check that their values fit together.
std::vector<Key> bdh_keys();
Status check_bdh(const Config& config);

}  // namespace octavo_train
