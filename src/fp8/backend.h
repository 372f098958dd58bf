// What a device does for cast(); the public function checks its arguments and forwards.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/fp8.h>

namespace octavo::fp8 {

// REQUIRES: arguments that the public function accepts, with at least one element.
void cast_cpu(const CastArgs& args);

}  // namespace octavo::fp8
