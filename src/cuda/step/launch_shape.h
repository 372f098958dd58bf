// Computes how a kernel of a step is launched on a device.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/step/kernels.h"

#include <octavo/types.h>

#include <string>

namespace octavo::cuda {

struct LaunchShape {
  int threads = 0;
  int shared = 0;  // in bytes
};
// Allows a kernel the shared memory that it needs. Returns an error if the device has less, or if its shared
// memory begins at another address.
Result<LaunchShape> prepare_kernel(const std::string& where, const StepKernel& kernel, int device);

}  // namespace octavo::cuda
