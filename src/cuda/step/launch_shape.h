// How a kernel of a step is launched on a device.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/step/kernels.h"

#include <octavo/types.h>

#include <string>

namespace octavo::cuda {

struct LaunchShape {
  int threads = 0;
  int shared = 0;  // bytes
};
// Allows a kernel the shared memory that it asks for. An error where the device has less, or begins it
// elsewhere.
Result<LaunchShape> prepare_kernel(const std::string& where, const StepKernel& kernel, int device);

}  // namespace octavo::cuda
