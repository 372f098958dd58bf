// SPDX-License-Identifier: MIT
#include "cuda/step/launch_shape.h"

#include "cuda/runtime/runtime.h"

#include <map>
#include <mutex>

namespace octavo::cuda {
namespace {

std::string cuda_name(int device) { return "cuda:" + std::to_string(device); }

Result<LaunchShape> load_kernel(const std::string& where, const StepKernel& kernel, int device) {
  const DeviceScope scope(device);
  cudaFuncAttributes attributes{};
  if (const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel.kernel); error != cudaSuccess) {
    (void)cudaGetLastError();
    return failed(where + " loading a kernel on " + cuda_name(device), error);
  }
  // A kernel's shape follows from the architecture of its code, not of the device: PTX may be older.
  const int arch = kernel.goes_as != 0 ? kernel.goes_as : attributes.ptxVersion * 10;
  const LaunchShape shape{kernel.threads(arch), kernel.shared_bytes(arch)};
  if (const int start = kernel.shared_start(arch); start > 0) {
    int reserved = start;
    (void)cudaDeviceGetAttribute(&reserved, cudaDevAttrReservedSharedMemoryPerBlock, device);
    if (reserved != start || attributes.sharedSizeBytes != 0) {
      return Status::unsupported(where, " shared memory on ", cuda_name(device), " begins at ",
                                 static_cast<std::size_t>(reserved) + attributes.sharedSizeBytes,
                                 ", expected ", start, "; this is a defect of this build");
    }
  }
  const cudaError_t error =
      cudaFuncSetAttribute(kernel.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared);
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return failed(where + " asking for " + std::to_string(shape.shared) + " bytes of shared memory on " +
                      cuda_name(device),
                  error);
  }
  return shape;
}

}  // namespace

Result<LaunchShape> prepare_kernel(const std::string& where, const StepKernel& kernel, int device) {
  if (kernel.kernel == nullptr) {
    return Status::unsupported(where, " this build has no CUDA kernels for this optimizer; build with ",
                               "-DOCTAVO_CUDA_RULES=all");
  }
  // A kernel is queried once per device, because plans are made at every step if the set of gradients
  // changes.
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, LaunchShape> known;
  const std::lock_guard lock(mutex);
  const auto found = known.find({kernel.kernel, device});
  if (found != known.end()) return found->second;
  auto shape = load_kernel(where, kernel, device);
  if (shape.ok()) known.emplace(std::pair(kernel.kernel, device), *shape);
  return shape;
}

}  // namespace octavo::cuda
