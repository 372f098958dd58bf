// SPDX-License-Identifier: MIT
#include "tests/cuda/fake_runtime.h"

#include <dlfcn.h>

#include <cstring>

namespace octavo::test {
namespace {

FakeCuda state;

// A call that needs a context opens it on the current device.
cudaError_t used(const char* name) {
  ++state.calls[name];
  if (state.devices == 0) return cudaErrorNoDevice;
  state.contexts.insert(state.current);
  return cudaSuccess;
}
cudaError_t asked(const char* name) {
  ++state.calls[name];
  return state.devices == 0 ? cudaErrorNoDevice : cudaSuccess;
}

struct UserObject {
  void* note;
  cudaHostFn_t destroy;
};

char driver_handle, lt_handle;  // their addresses represent loaded libraries

int context_state(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = state.contexts.contains(device) ? 1 : 0;
  return 0;
}

// --- cuBLASLt ---

struct Preference {
  std::map<int, std::uint32_t> values;
};
struct Algorithm {
  std::uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  std::size_t workspace;
  int state;
  float waves;
  int reserved[4];
};
std::vector<Preference> proposals;  // an algorithm is the index of its preference

int lt_create(void** out) {
  *out = &lt_handle;
  return 0;
}
int lt_make(void** out, int /*unused*/, int /*unused*/) {
  *out = &lt_handle;
  return 0;
}
int lt_destroy(void* /*unused*/) { return 0; }
int lt_set(void* /*unused*/, int /*unused*/, const void* /*unused*/, std::size_t /*unused*/) { return 0; }
int lt_layout(void** out, int /*unused*/, std::uint64_t /*unused*/, std::uint64_t /*unused*/,
              std::int64_t /*unused*/) {
  *out = &lt_handle;
  return 0;
}
int lt_preference(Preference** out) {
  *out = new Preference;
  return 0;
}
int lt_drop_preference(Preference* preference) {
  delete preference;
  return 0;
}
int lt_set_preference(Preference* preference, int attribute, const void* value, std::size_t bytes) {
  std::uint32_t read = 0;
  if (bytes == sizeof read) std::memcpy(&read, value, sizeof read);
  preference->values[attribute] = read;
  return 0;
}
int lt_heuristic(void* /*unused*/, void* /*unused*/, void* /*unused*/, void* /*unused*/, void* /*unused*/,
                 void* /*unused*/, Preference* preference, int /*unused*/, Heuristic* found, int* count) {
  ++state.heuristics;
  *found = {};
  found->algorithm.data[0] = proposals.size();
  proposals.push_back(*preference);
  *count = 1;
  return 0;
}
int lt_matmul(void* /*unused*/, void* /*unused*/, const void* /*unused*/, const void* a, void* /*unused*/,
              const void* b, void* /*unused*/, const void* /*unused*/, const void* /*unused*/,
              void* /*unused*/, void* to, void* /*unused*/, const Algorithm* algorithm, void* /*unused*/,
              std::size_t /*unused*/, cudaStream_t /*unused*/) {
  state.matmuls.push_back({a, b, to, proposals.at(algorithm->data[0]).values});
  return 0;
}

void* lt_function(const char* name) {
  const std::map<std::string, void*> all = {
      {"cublasLtCreate", reinterpret_cast<void*>(lt_create)},
      {"cublasLtMatmul", reinterpret_cast<void*>(lt_matmul)},
      {"cublasLtMatmulDescCreate", reinterpret_cast<void*>(lt_make)},
      {"cublasLtMatmulDescDestroy", reinterpret_cast<void*>(lt_destroy)},
      {"cublasLtMatmulDescSetAttribute", reinterpret_cast<void*>(lt_set)},
      {"cublasLtMatrixLayoutCreate", reinterpret_cast<void*>(lt_layout)},
      {"cublasLtMatrixLayoutDestroy", reinterpret_cast<void*>(lt_destroy)},
      {"cublasLtMatmulPreferenceCreate", reinterpret_cast<void*>(lt_preference)},
      {"cublasLtMatmulPreferenceDestroy", reinterpret_cast<void*>(lt_drop_preference)},
      {"cublasLtMatmulPreferenceSetAttribute", reinterpret_cast<void*>(lt_set_preference)},
      {"cublasLtMatmulAlgoGetHeuristic", reinterpret_cast<void*>(lt_heuristic)},
  };
  const auto found = all.find(name);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace

int FakeCuda::count(const std::string& name) const {
  const auto found = calls.find(name);
  return found == calls.end() ? 0 : found->second;
}

FakeCuda& fake() { return state; }
void reset() { state = {}; }

void destroy(FakeGraph& graph) {
  for (const auto& [note, destructor] : graph.retained) destructor(note);
  graph.retained.clear();
}

}  // namespace octavo::test

// NOLINTBEGIN(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp): the linker's names
using octavo::test::asked;
using octavo::test::fake;
using octavo::test::used;

extern "C" {

cudaError_t __wrap_cudaGetDeviceCount(int* count) {
  *count = fake().devices;
  return asked("cudaGetDeviceCount");
}
cudaError_t __wrap_cudaGetDevice(int* device) {
  *device = fake().current;
  return asked("cudaGetDevice");
}
cudaError_t __wrap_cudaSetDevice(int device) {
  fake().current = device;
  return used("cudaSetDevice");
}
cudaError_t __wrap_cudaDriverGetVersion(int* version) {
  *version = fake().driver;
  return cudaSuccess;
}
cudaError_t __wrap_cudaGetLastError() { return cudaSuccess; }
cudaError_t __wrap_cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {};
  std::strcpy(properties->name, "NVIDIA H200");
  properties->major = 9;
  properties->multiProcessorCount = 132;
  properties->totalGlobalMem = std::size_t{141} << 30;
  properties->sharedMemPerBlockOptin = std::size_t{227} << 10;
  return asked("cudaGetDeviceProperties");
}
cudaError_t __wrap_cudaGetDeviceProperties_v2(cudaDeviceProp* properties, int device) {
  return __wrap_cudaGetDeviceProperties(properties, device);
}
cudaError_t __wrap_cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int /*device*/) {
  *value = attribute == cudaDevAttrComputeCapabilityMajor         ? 9
           : attribute == cudaDevAttrMultiProcessorCount          ? 132
           : attribute == cudaDevAttrReservedSharedMemoryPerBlock ? 1024
           : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin ? 227 << 10
                                                                  : 0;
  return asked("cudaDeviceGetAttribute");
}
cudaError_t __wrap_cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* /*kernel*/) {
  *attributes = {};
  attributes->ptxVersion = attributes->binaryVersion = 90;
  return used("cudaFuncGetAttributes");
}
cudaError_t __wrap_cudaFuncSetAttribute(const void* /*kernel*/, cudaFuncAttribute /*attribute*/,
                                        int /*value*/) {
  return used("cudaFuncSetAttribute");
}
cudaError_t __wrap_cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* data) {
  *attributes = {};
  attributes->type = cudaMemoryTypeDevice;
  const auto found = fake().device_of.find(data);
  attributes->device = found == fake().device_of.end() ? fake().home : found->second;
  return used("cudaPointerGetAttributes");
}
cudaError_t __wrap_cudaStreamIsCapturing(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status) {
  *status = fake().capturing != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  const cudaError_t error = used("cudaStreamIsCapturing");
  return error == cudaSuccess ? fake().capture_error : error;
}
cudaError_t __wrap_cudaStreamGetDevice(cudaStream_t /*stream*/, int* device) {
  *device = fake().home;
  return used("cudaStreamGetDevice");
}
// The arguments after the graph differ between versions of CUDA, and the caller cleans up after them.
cudaError_t __wrap_cudaStreamGetCaptureInfo(cudaStream_t /*stream*/, cudaStreamCaptureStatus* status,
                                            unsigned long long* number, cudaGraph_t* graph) {
  *status = cudaStreamCaptureStatusActive;
  *number = fake().capturing->number;
  *graph = reinterpret_cast<cudaGraph_t>(fake().capturing);
  return used("cudaStreamGetCaptureInfo");
}
cudaError_t __wrap_cudaStreamGetCaptureInfo_v2(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                               unsigned long long* number, cudaGraph_t* graph) {
  return __wrap_cudaStreamGetCaptureInfo(stream, status, number, graph);
}
cudaError_t __wrap_cudaUserObjectCreate(cudaUserObject_t* object, void* note, cudaHostFn_t destroy,
                                        unsigned /*references*/, unsigned /*flags*/) {
  *object = reinterpret_cast<cudaUserObject_t>(new octavo::test::UserObject{note, destroy});
  return asked("cudaUserObjectCreate");
}
cudaError_t __wrap_cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object, unsigned /*count*/,
                                             unsigned /*flags*/) {
  auto* const own = reinterpret_cast<octavo::test::UserObject*>(object);
  reinterpret_cast<octavo::test::FakeGraph*>(graph)->retained.emplace_back(own->note, own->destroy);
  delete own;
  return asked("cudaGraphRetainUserObject");
}
cudaError_t __wrap_cudaHostRegister(void* /*data*/, std::size_t /*bytes*/, unsigned /*flags*/) {
  return used("cudaHostRegister");
}
cudaError_t __wrap_cudaHostUnregister(void* /*data*/) { return used("cudaHostUnregister"); }
cudaError_t __wrap_cudaMalloc(void** /*data*/, std::size_t /*bytes*/) {
  (void)used("cudaMalloc");
  return cudaErrorMemoryAllocation;
}
cudaError_t __wrap_cudaMallocAsync(void** /*data*/, std::size_t /*bytes*/, cudaStream_t /*stream*/) {
  (void)used("cudaMallocAsync");
  return cudaErrorMemoryAllocation;
}
cudaError_t __wrap_cudaFreeAsync(void* /*data*/, cudaStream_t /*stream*/) { return used("cudaFreeAsync"); }
cudaError_t __wrap_cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t /*stream*/) {
  std::memset(data, value, bytes);
  return used("cudaMemsetAsync");
}
cudaError_t __wrap_cudaLaunchKernel(const void* /*kernel*/, dim3 /*grid*/, dim3 /*block*/,
                                    void** /*arguments*/, std::size_t /*shared*/, cudaStream_t /*stream*/) {
  return used("cudaLaunchKernel");
}
cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t* /*config*/, const void* /*kernel*/,
                                       void** /*arguments*/) {
  return used("cudaLaunchKernel");
}
// CUDA 13 and later launch kernels in <<<>>> with this function.
cudaError_t __wrap___cudaGetKernel(cudaKernel_t* found, const void* kernel) {
  *found = reinterpret_cast<cudaKernel_t>(const_cast<void*>(kernel));
  return cudaSuccess;
}
cudaError_t __wrap___cudaLaunchKernel(cudaKernel_t /*kernel*/, dim3 /*grid*/, dim3 /*block*/,
                                      void** /*arguments*/, std::size_t /*shared*/, cudaStream_t /*stream*/) {
  return used("cudaLaunchKernel");
}

void* __real_dlopen(const char* name, int how);
void* __real_dlsym(void* library, const char* name);

// Libraries that are loaded at run time. The static runtime loads the driver itself, without RTLD_NOLOAD.
void* __wrap_dlopen(const char* name, int how) {
  using namespace octavo::test;  // NOLINT(google-build-using-namespace)
  if (name != nullptr && std::strncmp(name, "libcublasLt.so", 14) == 0) return &lt_handle;
  if (name != nullptr && std::strcmp(name, "libcuda.so.1") == 0 && (how & RTLD_NOLOAD) != 0)
    return &driver_handle;
  return __real_dlopen(name, how);
}
void* __wrap_dlsym(void* library, const char* name) {
  using namespace octavo::test;  // NOLINT(google-build-using-namespace)
  if (library == &lt_handle) return lt_function(name);
  if (library != &driver_handle) return __real_dlsym(library, name);
  ++fake().calls[name];
  return std::strcmp(name, "cuDevicePrimaryCtxGetState") == 0 ? reinterpret_cast<void*>(context_state)
                                                              : nullptr;
}

}  // extern "C"
// NOLINTEND(bugprone-reserved-identifier,cert-dcl37-c,cert-dcl51-cpp)
