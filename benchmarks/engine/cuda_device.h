// A GPU as a benchmark device. This header includes no CUDA header, because a build without CUDA includes it
// too; there make_cuda_device throws an error (no_cuda_device.cc).
// SPDX-License-Identifier: MIT
#pragma once

#include "benchmarks/engine/device.h"

namespace octavo::cli {

// REQUIRES: gpu_info() lists the device as usable.
std::unique_ptr<BenchDevice> make_cuda_device(int index);

}  // namespace octavo::cli
