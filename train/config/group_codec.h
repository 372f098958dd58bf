// Reads and writes `training.groups` and `training.no_decay`. Errors name the part that is wrong and its
// place, because "got a list, expected …" does not help with a long list of mappings.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/codec.h"
#include "train/config/group_settings.h"

#include <vector>

namespace octavo_train {

Codec<std::vector<GroupSettings>> parameter_groups();
Codec<NoDecay> no_decay_choice();

// Accepts a state format by its name or an alias, with or without separators.
Codec<octavo::StateFormat> state_name();

}  // namespace octavo_train
