// Reads and writes `training.groups` and `training.no_decay`. A list of mappings is too large for "got a
// list, expected …": the reader says which part is wrong, and where it stands.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/codec.h"
#include "train/config/group_settings.h"

#include <vector>

namespace octavo::train {

Codec<std::vector<GroupSettings>> parameter_groups();
Codec<NoDecay> no_decay_choice();

// A state format by its name or an alias, with or without separators.
Codec<StateFormat> state_name();

}  // namespace octavo::train
