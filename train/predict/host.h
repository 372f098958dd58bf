// How fast a host launches kernels. Steps of small batches wait for it, and hosts differ by twice.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>
#include <torch/types.h>

namespace octavo::train {

// Seconds of the host for one kernel, in C++ with autograd: of the faster of two machines with an H200 that
// plans were held against, and of the slower one.
inline constexpr double kFastLaunch = 18e-6, kSlowLaunch = 35e-6;

// The same of this machine: a few layers, too small to keep a GPU busy, go forward and back on `device`.
// Takes half a second, a few megabytes and cuBLAS's workspaces. Errors: a device that has no memory left, or
// that fails.
Result<double> measure_launch(const ::torch::Device& device);

}  // namespace octavo::train
