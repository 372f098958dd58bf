// What a device does for dropout(); the public function checks its arguments and forwards.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/dropout.h>

namespace octavo {

// REQUIRES: arguments that dropout() accepts, with at least one element.
Status dropout_cpu(const DropoutArgs& args);
Status dropout_cuda(const DropoutArgs& args);

}  // namespace octavo
