// The list of GPUs in a build without CUDA: none.
// SPDX-License-Identifier: MIT
#include <octavo/backend.h>

namespace octavo {

namespace {

constexpr const char* kNoBackend = "this build has no CUDA backend";

}  // namespace

bool has_cuda() { return false; }
GpuReport list_gpus() { return {{}, kNoBackend}; }
Result<GpuInfo> gpu_info(int device) {
  return Status::unsupported("[octavo] device: got cuda:" + std::to_string(device) + ", but " + kNoBackend);
}
GpuReport gpu_info() { return list_gpus(); }

}  // namespace octavo
