// SPDX-License-Identifier: MIT
#include "offload/pin.h"

#include "cuda/runtime/runtime.h"

#include <cuda_runtime_api.h>

#include <string>

namespace octavo::offload {

Status pin_pages(void* data, std::int64_t bytes) {
  const cuda::DeviceScope scope(cuda::device_with_context());
  const cudaError_t error = cudaHostRegister(data, static_cast<std::size_t>(bytes), cudaHostRegisterPortable);
  if (error == cudaSuccess) return {};
  (void)cudaGetLastError();  // so that a later call does not report it again
  return Status::failed(std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")");
}

void unpin_pages(void* data) {
  const cuda::DeviceScope scope(cuda::device_with_context());
  if (cudaHostUnregister(data) != cudaSuccess) (void)cudaGetLastError();
}

}  // namespace octavo::offload
