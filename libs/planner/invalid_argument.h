// The messages of the planner about invalid arguments.
// SPDX-License-Identifier: MIT
#pragma once

#include "core/invalid_argument.h"

namespace octavo::plan {

inline constexpr InvalidArgument kInvalid{"[plan] "};

}  // namespace octavo::plan
