// Types of keys that configs of speech models have: the trainer's own and those of other programs.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/codec.h"

#include <cstdint>
#include <vector>

namespace octavo::train {

// Frames by which tokens can advance: no two equal, and one above 0.
Codec<std::vector<std::int64_t>> duration_list();
// An odd number: a convolution with as many frames on both sides.
Codec<std::int64_t> odd_number(std::int64_t high);

}  // namespace octavo::train
