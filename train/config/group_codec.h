// Reads and writes `training.groups` and `training.no_decay`. A list of mappings is too large for "got a
// list, expected …": the reader says which part is wrong, and where it stands.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/codec.h"
#include "train/config/group_settings.h"
#include "train/config/node.h"

#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

// What is wrong with a part of a value: "[1].state" at its place, "got 9bit, expected one of …".
struct Problem {
  Place place;
  std::string part;
  std::string message;
};

Codec<std::vector<GroupSettings>> parameter_groups();
Codec<NoDecay> no_decay_choice();

// Why parameter_groups() does not read a value. REQUIRES: it does not.
Problem groups_problem(const YamlNode& node);

// A state format by its name or an alias, with or without separators.
Codec<StateFormat> state_name();

}  // namespace octavo::train
