// Chooses the CPU implementation.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/kernels.h"

#include <octavo/status.h>

namespace octavo::cpu {

// Returns the chosen table, or an error if OCTAVO_FORCE_IMPL is invalid.
Result<const Kernels*> kernels();

}  // namespace octavo::cpu
