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

// Bytes of codes and number of scales of 4096 elements in a format; c10::Error for a bad block size.
struct MomentSize {
  std::int64_t codes = 0, scales = 0;
};
inline MomentSize moment_layout(std::uint32_t format, std::int64_t block_size) {
  octavo_moment_spec spec = sized<octavo_moment_spec>();
  spec.format = format;
  spec.numel = 4096;
  spec.block_size = block_size;
  MomentSize out;
  check(octavo_moment_layout(&spec, &out.codes, &out.scales), "");
  return out;
}

// c10::Error for hyper-parameters that the algorithm does not take: a step of no tensors.
inline void check_numbers(const octavo_group_config& config, octavo_step_args args) {
  octavo_group* group = nullptr;
  check(octavo_group_create(&config, nullptr, 0, &group), "");
  args.step = 1;
  octavo_step_report report = sized<octavo_step_report>();
  const octavo_status status = octavo_group_step(group, &args, &report);
  octavo_group_destroy(group);
  check(status, "");
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
  return device.is_cpu() ? 0 : device.index();
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

// The stream that torch works on; none on the CPU. It asks the device guard, which every LibTorch has.
// c10_cuda exists only in CUDA builds, so nothing here names it.
using MaybeStream = std::optional<c10::Stream>;
inline MaybeStream current_stream(const ::torch::Device& device) {
  if (device.is_cpu()) return std::nullopt;
  return c10::impl::getDeviceGuardImpl(device.type())->getStream(device);
}
// Its cudaStream_t.
inline void* handle_of(const MaybeStream& stream) { return stream ? handle_of(*stream, 0) : nullptr; }

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

// Tensors that one call steps: one device, one step count. Keeps addresses, not tensors.
class Group {
 public:
  Group(const octavo_group_config& config, const ::torch::Device& device,
        const std::vector<octavo_tensor>& tensors)
      : device_(device), workspace_(Tensor(), device) {
    octavo_group* made = nullptr;
    check(octavo_group_create(&config, tensors.data(), static_cast<std::int64_t>(tensors.size()), &made),
          "octavo: ");
    group_.reset(made);
    for (const octavo_tensor& t : tensors) grads_.push_back(t.grad);
    workspace_bytes_ = octavo_group_workspace_bytes(made);
    workspace_ = Used(bytes(workspace_bytes_, device), device);
  }

  std::int64_t workspace_bytes() const { return workspace_bytes_; }

  // Gradients of the same dtypes and sizes, in the tensors' order.
  void bind_grads(std::vector<const void*> grads) {
    if (grads == grads_) return;
    const auto count = static_cast<std::int64_t>(grads.size());
    check(octavo_group_rebind_grads(group_.get(), grads.data(), count), "octavo: ");
    grads_ = std::move(grads);
  }

  // `args` without workspace, stream and threads, which are set here.
  void step(octavo_step_args args) {
    const MaybeStream stream = current_stream(device_);
    args.workspace = workspace_.on(stream);
    args.workspace_bytes = workspace_bytes_;
    args.stream = handle_of(stream);
    args.threads = at::get_num_threads();
    octavo_step_report report = sized<octavo_step_report>();
    check(octavo_group_step(group_.get(), &args, &report), "octavo: ");
  }

 private:
  struct Destroy {
    void operator()(octavo_group* group) const { octavo_group_destroy(group); }
  };
  std::unique_ptr<octavo_group, Destroy> group_;
  ::torch::Device device_;
  std::vector<const void*> grads_;
  std::int64_t workspace_bytes_ = 0;
  Used workspace_;
};

// The norm of many gradients of one device, left in `out`: l2, the maximum, and (as int64) the count of
// non-finite elements; octavo_device_norm.
class Norm {
 public:
  explicit Norm(const ::torch::Device& device)
      : device_(device),
        workspace_(bytes(0, device), device),
        out_(::torch::zeros({3}, ::torch::TensorOptions().dtype(::torch::kFloat64).device(device)), device) {}

  std::int64_t workspace_bytes() const { return workspace_.tensor().numel(); }

  const Tensor& run(const std::vector<octavo_grad_view>& views) {
    const auto count = static_cast<std::int64_t>(views.size());
    if (norm_ == nullptr) {
      octavo_norm* made = nullptr;
      check(octavo_norm_create(device_kind(device_), device_index(device_), views.data(), count, &made),
            "octavo: ");
      norm_.reset(made);
    } else {
      check(octavo_norm_rebind(norm_.get(), views.data(), count), "octavo: ");
    }
    const std::int64_t size = octavo_norm_workspace_bytes(norm_.get());
    if (workspace_bytes() < size) workspace_ = Used(bytes(size, device_), device_);
    const MaybeStream stream = current_stream(device_);
    auto* out = static_cast<octavo_device_norm*>(out_.on(stream));
    check(octavo_norm_run(norm_.get(), workspace_.on(stream), workspace_bytes(), out, handle_of(stream),
                          device_.is_cpu() ? at::get_num_threads() : 0),
          "octavo: ");
    return out_.tensor();
  }

 private:
  struct Destroy {
    void operator()(octavo_norm* norm) const { octavo_norm_destroy(norm); }
  };
  std::unique_ptr<octavo_norm, Destroy> norm_;
  ::torch::Device device_;
  Used workspace_, out_;
};

}  // namespace octavo::torch::native
