// Reads and writes `training.init_rename`: a mapping of patterns, in the order of the file.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/codec.h"
#include "train/config/init_settings.h"

#include <vector>

namespace octavo_train {

Codec<std::vector<Rename>> renames();

}  // namespace octavo_train
