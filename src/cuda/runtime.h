// The CUDA runtime as the rest of the backend sees it: errors as Status, devices, where a pointer lives.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/kernels.h"

#include <octavo/types.h>

#include <cuda_runtime_api.h>

#include <string>

namespace octavo::cuda {

// "[name] step_kernel over 646 tensors on cuda:0: an illegal memory access was encountered
// (cudaErrorIllegalAddress)".
Status failed(const std::string& what, cudaError_t error);

// An error where the device cannot be used: no driver, an old one, no such device, no code for it.
Status check_device(const std::string& where, int device);

// An error where `data` is not memory of the device.
Status check_pointer(const std::string& where, const void* data, int device);
// An error where `stream` belongs to another device.
Status check_stream(const std::string& where, cudaStream_t stream, int device);

int multiprocessors(int device);

// A function of the driver by its name; null where the driver is not loaded, which the first call of the
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

// How a kernel is launched on a device.
struct LaunchShape {
  int threads = 0;
  int shared = 0;  // bytes
};
// Allows a kernel the shared memory that it asks for. An error where the device has less, or begins it
// elsewhere.
Result<LaunchShape> prepare_kernel(const std::string& where, const StepKernel& kernel, int device);

}  // namespace octavo::cuda
