// Codecs for keys in configs of speech models: in the trainer's configs and in those of other programs.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/codec.h"

#include <cstdint>
#include <vector>

namespace octavo_train {

// Returns the codec of TDT durations in frames: all different, and at least one above 0.
Codec<std::vector<std::int64_t>> duration_list();
// Returns the codec of an odd number up to `high`: the kernel size of a convolution with the same number of
// frames on both sides.
Codec<std::int64_t> odd_number(std::int64_t high);

}  // namespace octavo_train
