// SPDX-License-Identifier: MIT
#include "cuda/runtime/runtime.h"

#include "cuda/runtime/arch.h"
#include "status/first_error.h"

#include <octavo/backend.h>

#include <dlfcn.h>

#include <atomic>
#include <mutex>
#include <set>

namespace octavo {
namespace cuda {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string cuda_name(int device) { return "cuda:" + std::to_string(device); }

// Explains from the runtime's error why there is no usable GPU.
std::string no_gpu_reason(cudaError_t error) {
  int driver = 0;
  int runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  if (driver == 0) return "no NVIDIA driver was found on this machine";
  if (error == cudaErrorInsufficientDriver || driver / 1000 < runtime / 1000) {
    return "the NVIDIA driver is too old: it supports CUDA " + version_text(driver) +
           ", this build uses CUDA " + version_text(runtime) +
           "; update the driver, or build with an older CUDA toolkit";
  }
  if (error == cudaSuccess || error == cudaErrorNoDevice) return "the NVIDIA driver found no GPU";
  return std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
}

// Returns the build option for a device.
std::string configure_for(const cudaDeviceProp& properties) {
  return "configure with -DCMAKE_CUDA_ARCHITECTURES=" + std::to_string(properties.major) +
         std::to_string(properties.minor);
}

// Returns why this build's code does not run on a device, or "". Opens a context on it.
std::string unusable_reason(int device, const cudaDeviceProp& properties) {
  const DeviceScope scope(device);
  cudaFuncAttributes attributes{};
  const cudaError_t error = cudaFuncGetAttributes(&attributes, any_kernel());
  if (error == cudaErrorNoKernelImageForDevice) {
    (void)cudaGetLastError();
    return "this build has no code for compute capability " + std::to_string(properties.major) + "." +
           std::to_string(properties.minor) + "; " + configure_for(properties);
  }
  if (error != cudaSuccess) {
    (void)cudaGetLastError();
    return std::string(cudaGetErrorString(error)) + " (" + cudaGetErrorName(error) + ")";
  }
  // The code may be PTX of an architecture with more shared memory than the device.
  const int needed = shared_limit(attributes.ptxVersion * 10);
  if (static_cast<std::size_t>(needed) > properties.sharedMemPerBlockOptin) {
    return "this build has only PTX of compute capability " + std::to_string(attributes.ptxVersion / 10) +
           "." + std::to_string(attributes.ptxVersion % 10) + " for it, whose kernels use up to " +
           std::to_string(needed) + " bytes of shared memory a block, and it has " +
           std::to_string(properties.sharedMemPerBlockOptin) + "; " + configure_for(properties);
  }
  return "";
}

// The properties of a device that the driver returns without a context.
struct Described {
  GpuInfo gpu;
  cudaDeviceProp properties{};
  bool found = false;
};
Described describe_gpu(int device) {
  Described out;
  cudaDeviceProp& properties = out.properties;
  GpuInfo& gpu = out.gpu;
  if (const cudaError_t bad = cudaGetDeviceProperties(&properties, device); bad != cudaSuccess) {
    (void)cudaGetLastError();
    gpu.note = cudaGetErrorString(bad);
    return out;
  }
  gpu.name = properties.name;
  gpu.compute_major = properties.major;
  gpu.compute_minor = properties.minor;
  gpu.multiprocessors = properties.multiProcessorCount;
  gpu.memory_bytes = static_cast<std::int64_t>(properties.totalGlobalMem);
  gpu.fp8_hardware = converts_fp8(properties.major * 100 + properties.minor * 10);
  out.found = true;
  return out;
}

// Opens a context on the device.
GpuInfo inspect(int device) {
  auto [gpu, properties, found] = describe_gpu(device);
  if (!found) return gpu;
  gpu.note = unusable_reason(device, properties);
  gpu.usable = gpu.note.empty();
  return gpu;
}

// Returns an error if there is no such device. Opens no context.
Status check_number(const std::string& where, int device) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    (void)cudaGetLastError();  // so that a later call does not report it again
    return Status::unsupported(where, " device: got ", cuda_name(device), ", but ", no_gpu_reason(error));
  }
  if (device < 0 || device >= count) {
    return Status::invalid(where, " device: got ", cuda_name(device), ", expected cuda:0 to ",
                           cuda_name(count - 1));
  }
  return {};
}

}  // namespace

Status failed(const std::string& what, cudaError_t error) {
  return Status::failed(what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

Status check_device(const std::string& where, int device) {
  // The check loads code, which opens a context on the device. It runs once, and only for this device.
  static std::mutex mutex;
  static std::set<int> usable;
  const std::lock_guard lock(mutex);
  if (usable.contains(device)) return {};
  OCTAVO_TRY(check_number(where, device));
  const GpuInfo gpu = inspect(device);
  if (!gpu.usable)
    return Status::unsupported(where, " device: ", cuda_name(device), " (", gpu.name, "): ", gpu.note);
  usable.insert(device);
  return {};
}

Status check_pointer(const std::string& where, const void* data, int device) {
  if (data == nullptr) return {};
  const DeviceScope scope(device);  // the query opens a context on the current device
  cudaPointerAttributes attributes{};
  const cudaError_t error = cudaPointerGetAttributes(&attributes, data);
  if (error != cudaSuccess) (void)cudaGetLastError();
  if (error != cudaSuccess || attributes.type == cudaMemoryTypeUnregistered ||
      attributes.type == cudaMemoryTypeHost) {
    return Status::invalid(where, ": got a host pointer, expected memory of ", cuda_name(device));
  }
  if (attributes.type == cudaMemoryTypeDevice && attributes.device != device) {
    return Status::invalid(where, ": got memory of ", cuda_name(attributes.device), ", expected memory of ",
                           cuda_name(device));
  }
  return {};
}

Status check_stream(const std::string& where, cudaStream_t stream, int device) {
#if CUDART_VERSION >= 12080
  // The default streams belong to whichever device is current.
  if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) return {};
  const DeviceScope scope(device);  // the queries open a context on the current device
  // A stream that is being captured must not be queried. On a wrong device its first kernel fails.
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &capture) == cudaSuccess && capture != cudaStreamCaptureStatusNone)
    return {};
  int of = device;
  if (const cudaError_t error = cudaStreamGetDevice(stream, &of); error != cudaSuccess) {
    (void)cudaGetLastError();
    // Any other error means that the query is not possible: the driver is too old, or an earlier call has
    // failed.
    if (error != cudaErrorInvalidResourceHandle && error != cudaErrorInvalidValue) return {};
    return Status::invalid(where, "stream: got a handle that is not a CUDA stream (", cudaGetErrorName(error),
                           ")");
  }
  if (of != device) {
    return Status::invalid(where, "stream: got a stream of ", cuda_name(of), ", expected one of ",
                           cuda_name(device), ", where the tensors are");
  }
#else
  (void)where, (void)stream, (void)device;
#endif
  return {};
}

int multiprocessors(int device) {
  int count = 0;
  if (cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) count = 1;
  return count;
}

void* driver_function(const char* name) {
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  return driver == nullptr ? nullptr : dlsym(driver, name);
}

bool has_context(int device) {
  using GetState = int(int device, unsigned* flags, int* active);
  // Every ~DeviceScope that changes the device calls this, so the function is looked up once. A failed lookup
  // is repeated, because the driver may be loaded later.
  static std::atomic<GetState*> found = nullptr;
  GetState* get = found.load(std::memory_order_relaxed);
  if (get == nullptr) {
    get = reinterpret_cast<GetState*>(driver_function("cuDevicePrimaryCtxGetState"));
    found.store(get, std::memory_order_relaxed);
  }
  unsigned flags = 0;
  int active = 0;
  return get != nullptr && get(device, &flags, &active) == 0 && active != 0;
}

int device_with_context() {
  int current = 0;
  int count = 0;
  if (cudaGetDevice(&current) != cudaSuccess || cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  if (has_context(current)) return current;
  for (int device = 0; device < count; ++device) {
    if (has_context(device)) return device;
  }
  return current;
}

DeviceScope::DeviceScope(int device) : device_(device) {
  if (cudaGetDevice(&before_) != cudaSuccess) before_ = -1;
  if (before_ != device) (void)cudaSetDevice(device);
}
DeviceScope::~DeviceScope() {
  if (before_ >= 0 && before_ != device_ && has_context(before_)) (void)cudaSetDevice(before_);
}

}  // namespace cuda

namespace {

template <class Fn>
GpuReport report_gpus(Fn&& each) {
  GpuReport report;
  (void)cudaRuntimeGetVersion(&report.runtime_version);
  (void)cudaDriverGetVersion(&report.driver_version);
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    (void)cudaGetLastError();
    report.note = cuda::no_gpu_reason(error);
    return report;
  }
  for (int i = 0; i < count; ++i) report.gpus.push_back(each(i));
  return report;
}

}  // namespace

bool has_cuda() { return true; }

GpuReport list_gpus() {
  return report_gpus([](int device) { return cuda::describe_gpu(device).gpu; });
}

Result<GpuInfo> gpu_info(int device) {
  OCTAVO_TRY(cuda::check_number("[octavo]", device));
  return cuda::inspect(device);
}

GpuReport gpu_info() { return report_gpus(cuda::inspect); }

}  // namespace octavo
