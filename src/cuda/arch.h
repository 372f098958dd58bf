// What architectures have, by number as in __CUDA_ARCH__ (900 for compute capability 9.0): the same for host
// and device, so that a kernel and its launch agree.
// SPDX-License-Identifier: MIT
#pragma once

namespace octavo::cuda {

// Room in shared memory for a copy of the decoding tables per lane.
constexpr bool has_large_shared(int arch) {
  return arch == 800 || arch == 870 || arch == 900 || (arch >= 1000 && arch < 1200);
}
// Bytes of shared memory that a block may ask for.
constexpr int shared_limit(int arch) {
  return has_large_shared(arch) ? (arch < 900 ? 163 : 227) * 1024 : (arch >= 860 ? 99 : 64) * 1024;
}
constexpr bool converts_fp8(int arch) { return arch >= 890; }

}  // namespace octavo::cuda
