// The core's C ABI over torch tensors: translates names, dtypes, devices, streams and errors. It uses the C
// ABI and octavo/engine.hpp, because the core's other C++ headers need C++20 and users of LibTorch may
// compile as C++17. Memory is torch's, so that torch's tools see it. Work is queued on torch's current
// stream.
// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/Parallel.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <torch/types.h>
#include <octavo/engine.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace octavo::torch::native {

using ::torch::Tensor;

// Throws c10::Error with the core's message if a C function has failed.
template <class Prefix>
void check(octavo_status status, const Prefix& prefix) {
  TORCH_CHECK(status == 0, prefix, octavo_last_error());
}

// Returns a C struct with its struct_size set.
template <class T>
T sized() {
  return octavo::make<T>();
}

inline std::uint32_t parse(const char* kind, const std::string& name) {
  std::uint32_t number = 0;
  check(octavo_parse(kind, name.c_str(), &number), "");
  return number;
}

inline octavo_format_info format_info(std::uint32_t number) {
  octavo_format_info info = sized<octavo_format_info>();
  for (std::int32_t i = 0; i < octavo_format_count(); ++i) {
    check(octavo_format(i, &info), "");
    if (info.number == number) break;
  }
  return info;
}

// Returns the core's number of a dtype; -1 if the core has no steps for it.
inline int dtype_number(::torch::ScalarType type) {
  switch (type) {
    case ::torch::kFloat32:
      return 0;
    case ::torch::kBFloat16:
      return 1;
    case ::torch::kFloat16:
      return 2;
    default:
      return -1;
  }
}

inline std::uint32_t device_kind(const ::torch::Device& device) { return device.is_cpu() ? 0 : 1; }
inline std::int32_t device_index(const ::torch::Device& device) {
  return device.is_cpu() || device.is_meta() ? 0 : device.index();
}

// Returns the cudaStream_t of a stream: Stream::native_handle(). LibTorch 2.9 does not have that function.
// For it the overload below finds a C function of LibTorch's CUDA library by name at run time, because CPU
// builds do not have that library.
template <class Stream>
auto handle_of(const Stream& stream, int) -> decltype(stream.native_handle()) {
  return stream.native_handle();
}
template <class Stream>
void* handle_of(const Stream& stream, long) {
  using Current = std::int32_t (*)(std::int32_t, void**);
  static const auto current =
      reinterpret_cast<Current>(dlsym(RTLD_DEFAULT, "aoti_torch_get_current_cuda_stream"));
  void* handle = nullptr;
  TORCH_CHECK(current != nullptr && current(stream.device_index(), &handle) == 0,
              "octavo: this LibTorch does not tell the CUDA stream of ", stream.device(),
              "; use a newer one");
  return handle;
}

// Returns torch's current stream; none on the CPU and for tensors without memory (meta). It calls the device
// guard, which every LibTorch has, because c10_cuda exists only in CUDA builds.
using MaybeStream = std::optional<c10::Stream>;
inline MaybeStream current_stream(const ::torch::Device& device) {
  if (device.is_cpu() || device.is_meta()) return std::nullopt;
  return c10::impl::getDeviceGuardImpl(device.type())->getStream(device);
}
// Returns its cudaStream_t; null if there is no stream.
inline void* handle_of(const MaybeStream& stream) { return stream ? handle_of(*stream, 0) : nullptr; }

// Returns true while a CUDA graph is captured on the stream. It finds the function of the CUDA runtime that
// LibTorch has loaded by name: CPU builds have no CUDA runtime, and older LibTorch has no function for this.
inline bool capturing(const MaybeStream& stream) {
  using Query = int (*)(void*, int*);
  static const auto query = reinterpret_cast<Query>(dlsym(RTLD_DEFAULT, "cudaStreamIsCapturing"));
  int status = 0;
  return stream && query != nullptr && query(handle_of(stream), &status) == 0 && status != 0;
}

inline Tensor bytes(std::int64_t count, const ::torch::Device& device) {
  return ::torch::empty({count > 0 ? count : 1},
                        ::torch::TensorOptions().dtype(::torch::kUInt8).device(device));
}

// A tensor that work on torch's current stream uses. If that is not the stream of its allocation, torch's
// allocator is notified; otherwise the allocator could reuse the memory while a kernel still uses it.
class StreamTensor {
 public:
  StreamTensor(Tensor tensor, const ::torch::Device& device)
      : tensor_(std::move(tensor)), last_(current_stream(device)) {}
  const Tensor& tensor() const { return tensor_; }
  // Returns its address for work on this stream.
  void* on(const MaybeStream& stream) {
    if (stream && stream != last_) tensor_.record_stream(*stream);
    last_ = stream;
    return tensor_.data_ptr();
  }

 private:
  Tensor tensor_;
  MaybeStream last_;
};

inline void* aligned(void* data, std::uintptr_t alignment) {
  return reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(data) + alignment - 1) / alignment *
                                 alignment);
}

}  // namespace octavo::torch::native
