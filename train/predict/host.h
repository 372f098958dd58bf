// Measures how fast a host launches kernels. Steps with small batches are limited by it, and hosts differ by
// a factor of two.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <torch/types.h>

namespace octavo_train {

// Host seconds to launch one kernel, in C++ with autograd, on the faster and the slower of the two machines
// with an H200 that plans were compared with.
inline constexpr double kFastLaunch = 18e-6, kSlowLaunch = 35e-6;

// Measures the host seconds per kernel on this machine: runs forward and backward passes of a few layers, too
// small to keep a GPU busy, on `device`. Takes half a second, a few megabytes and cuBLAS's workspaces.
// Returns an error if the device has no memory left or fails.
Result<double> measure_launch(const torch::Device& device);

}  // namespace octavo_train
