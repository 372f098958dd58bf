// The core's C ABI over torch tensors: names, streams and errors translated, handles that free themselves. It
// uses the C ABI because the headers of the C++ API need C++20, and users of LibTorch may compile as C++17.
// Memory comes from torch's allocator, so that its tools see it; work is queued on torch's current stream.
// SPDX-License-Identifier: MIT
#pragma once

#include <ATen/Parallel.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <octavo/octavo.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace octavo::torch::native {

using ::torch::Tensor;

// Any failure of the core is a c10::Error with the core's message.
template <class Where>
void check(octavo_status status, const Where& where) {
  TORCH_CHECK(status == 0, where, octavo_last_error());
}

template <class T>
T sized() {
  T out{};
  out.struct_size = static_cast<std::uint32_t>(sizeof(T));
  return out;
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

// -1 for a type that the core does not step.
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

// The cudaStream_t of a stream: Stream::native_handle. LibTorch 2.9 does not have that function; there the C
// function of its CUDA library is found by name at run time, because CPU builds do not have it.
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

// The stream that torch works on; none on the CPU, and of tensors without memory (meta). It asks the device
// guard, which every LibTorch has. c10_cuda exists only in CUDA builds, so nothing here names it.
using MaybeStream = std::optional<c10::Stream>;
inline MaybeStream current_stream(const ::torch::Device& device) {
  if (device.is_cpu() || device.is_meta()) return std::nullopt;
  return c10::impl::getDeviceGuardImpl(device.type())->getStream(device);
}
// Its cudaStream_t.
inline void* handle_of(const MaybeStream& stream) { return stream ? handle_of(*stream, 0) : nullptr; }

// Whether a CUDA graph is being captured on the stream. The CUDA runtime that LibTorch has loaded is asked,
// by name: CPU builds have none, and older LibTorch has no function for it.
inline bool capturing(const MaybeStream& stream) {
  using Ask = int (*)(void*, int*);
  static const auto ask = reinterpret_cast<Ask>(dlsym(RTLD_DEFAULT, "cudaStreamIsCapturing"));
  int status = 0;
  return stream && ask != nullptr && ask(handle_of(stream), &status) == 0 && status != 0;
}

inline Tensor bytes(std::int64_t count, const ::torch::Device& device) {
  return ::torch::empty({count > 0 ? count : 1},
                        ::torch::TensorOptions().dtype(::torch::kUInt8).device(device));
}

// A tensor that work on the current stream uses. Where that is not the stream it was made on, torch's
// allocator is told: else it could give the memory to others while a kernel still uses it.
class Used {
 public:
  Used(Tensor tensor, const ::torch::Device& device)
      : tensor_(std::move(tensor)), last_(current_stream(device)) {}
  const Tensor& tensor() const { return tensor_; }
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

struct Destroy {
  void operator()(octavo_engine* engine) const { octavo_engine_destroy(engine); }
};
using Engine = std::unique_ptr<octavo_engine, Destroy>;

inline Engine make_engine(std::uint32_t algorithm) {
  octavo_engine* made = nullptr;
  check(octavo_engine_create(algorithm, &made), "octavo: ");
  return Engine(made);
}

}  // namespace octavo::torch::native
