// GPUs, in a build without CUDA.
// SPDX-License-Identifier: MIT
#include <octavo/backend.h>

namespace octavo {

GpuReport gpu_info() { return {{}, "this build has no CUDA backend"}; }

}  // namespace octavo
