// Warns about a compute type that a GPU has no tensor cores for.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"

#include <string>
#include <string_view>

namespace octavo_train {

// Returns true if GPUs of this compute capability have tensor cores for bfloat16.
constexpr bool has_bfloat16_units(int compute_major) { return compute_major >= 8; }

// Returns the warning "compute_dtype: bfloat16 is slow on …; use compute_dtype=float16" for a GPU before
// compute capability 8.0, whose tensor cores do not support bfloat16. Empty if the type is not slow there.
std::string slow_type_text(ComputeType type, std::string_view gpu, int compute_major, int compute_minor);

}  // namespace octavo_train
