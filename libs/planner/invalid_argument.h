// The messages of the planner about invalid arguments.
// SPDX-License-Identifier: MIT
#pragma once

#include "status/invalid_argument.h"

namespace octavo::plan {

inline constexpr InvalidArgument kInvalid{"[plan] "};

}  // namespace octavo::plan
