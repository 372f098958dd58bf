// A GPU as a benchmark device. No CUDA header is included here: a build without CUDA has it too, with an
// error in its place (no_cuda_device.cc).
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/bench/device.h"

namespace octavo::cli {

// REQUIRES: gpu_info() lists the device as usable.
std::unique_ptr<BenchDevice> make_cuda_device(int index);

}  // namespace octavo::cli
