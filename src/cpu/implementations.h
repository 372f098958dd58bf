// The choice of a CPU implementation.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/kernels.h"

#include <octavo/status.h>

namespace octavo::cpu {

// The chosen table, or the error of a bad OCTAVO_FORCE_IMPL.
Result<const Kernels*> kernels();

}  // namespace octavo::cpu
