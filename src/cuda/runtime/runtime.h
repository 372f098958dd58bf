// The interface of the CUDA runtime for the rest of the backend: errors as Status, devices, and checks of
// pointers.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>

namespace octavo::cuda {

// Returns a message such as "[name] step_kernel over 646 tensors on cuda:0: an illegal memory access was
// encountered (cudaErrorIllegalAddress)".
Status failed(const std::string& what, cudaError_t error);

// Returns an error if the device cannot be used: no driver, an old driver, no such device, or no code for it.
Status check_device(const std::string& where, int device);

// Returns an error if `data` is not memory of the device.
Status check_pointer(const std::string& where, const void* data, int device);
// Returns an error if `stream` belongs to another device.
Status check_stream(const std::string& where, cudaStream_t stream, int device);

int multiprocessors(int device);

// Returns some kernel, defined in step/prepare.cu. Whether it loads on a device shows whether this build has
// code for the device.
const void* any_kernel();

// The parts of a workspace begin at multiples of 256 bytes.
inline constexpr std::int64_t kAlignment = 256;
constexpr std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Returns a driver function by its name, or null if the driver is not loaded, which the first call of the
// runtime does.
void* driver_function(const char* name);

// Returns true if this process has a CUDA context on the device. Opens none.
bool has_context(int device);
// A device for calls that need a context and no device in particular, such as pinning host memory: the
// current device if it has a context, else the first device that has one, else the current device.
int device_with_context();

// Makes `device` current for the calling thread. The destructor restores the previous device if this process
// has a context there: cudaSetDevice opens a context (since CUDA 12), and a process that uses one GPU must
// not use memory of another. Without a context there, `device` stays current. PyTorch's device guard also
// skips cudaSetDevice then, but remembers the previous device and restores it later; this class does not.
class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = -1;
  int device_;
};

}  // namespace octavo::cuda
