// The engine for C++17: octavo::Engine owns an octavo_engine, and a failed call throws an EngineError. Each
// method calls the C function of the same name; octavo.h defines their contracts and the structs.
//
//   octavo::Engine engine(algorithm);  // a name or a number
//   auto options = octavo::make<octavo_step_args>();
//   options.lr = 3e-4;
//   engine.set_group(0, 0, options);
//   engine.set(handles, tensors);
//   per step:
//     engine.begin(handles, grads, dtypes);
//     engine.step(args);
//
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/octavo.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace octavo {

// A failed call: the library's message, the status, and the tensor that caused it.
class EngineError : public std::runtime_error {
 public:
  EngineError(octavo_status status, const std::string& message, std::int64_t tensor = -1)
      : std::runtime_error(message), status_(status), tensor_(tensor) {}
  octavo_status status() const noexcept { return status_; }
  // The handle of the tensor; -1: no tensor caused the failure.
  std::int64_t tensor() const noexcept { return tensor_; }

 private:
  octavo_status status_;
  std::int64_t tensor_;
};

// Throws an EngineError if a C function has failed.
inline void check(octavo_status status) {
  if (status != 0) throw EngineError(status, octavo_last_error());
}

// A C struct with its struct_size set. octavo_step_args has the default of every option, all other structs
// are zero.
template <class T>
T make() {
  T out{};
  out.struct_size = static_cast<std::uint32_t>(sizeof(T));
  if constexpr (std::is_same_v<T, octavo_step_args>) check(octavo_step_args_init(&out));
  return out;
}

// The number of a name: see octavo_parse.
inline std::uint32_t parse(const char* kind, const std::string& name) {
  std::uint32_t number = 0;
  check(octavo_parse(kind, name.c_str(), &number));
  return number;
}

// A contiguous array that a call reads, such as a std::vector, a std::array or a std::span.
template <class T>
class Span {
 public:
  Span() = default;
  Span(const T* data, std::size_t size) : data_(data), size_(size) {}
  template <class Array, class = std::enable_if_t<std::is_convertible_v<
                             decltype(std::data(std::declval<const Array&>())), const T*>>>
  Span(const Array& array)  // NOLINT(google-explicit-constructor)
      : data_(std::data(array)), size_(std::size(array)) {}

  const T* data() const { return data_; }
  // The type of the C functions' counts.
  std::int64_t size() const { return static_cast<std::int64_t>(size_); }

 private:
  const T* data_ = nullptr;
  std::size_t size_ = 0;
};

class Engine {
 public:
  using Handles = Span<std::uint32_t>;
  // Sums norms over devices and ranks, where a call needs that. An exception that it throws leaves the call.
  using Combine = std::function<void()>;
  enum class Wait : std::uint32_t { weights = 0, gradients = 1 };
  enum class Copy : std::uint32_t { to_host = 0, to_device = 1 };

  explicit Engine(std::uint32_t algorithm) {
    octavo_engine* made = nullptr;
    check(octavo_engine_create(algorithm, &made));
    engine_.reset(made);
  }
  explicit Engine(const std::string& algorithm) : Engine(parse("optimizer", algorithm)) {}

  // The handle for C functions; null after a move.
  octavo_engine* get() const noexcept { return engine_.get(); }

  void set_group(std::uint32_t group, std::uint32_t switches, const octavo_step_args& options,
                 std::uint32_t lr_device_kind = 0, std::int32_t lr_device_index = 0) {
    expect(octavo_engine_set_group(get(), group, switches, &options, lr_device_kind, lr_device_index));
  }
  void set(Handles handles, Span<octavo_engine_tensor> tensors) {
    check_size("tensors", tensors.size(), handles);
    expect(octavo_engine_set(get(), handles.data(), tensors.data(), handles.size()));
  }
  void remove(Handles handles) { expect(octavo_engine_remove(get(), handles.data(), handles.size())); }
  std::int64_t failed_tensor() const { return octavo_engine_failed_tensor(get()); }

  octavo_engine_plan begin(Handles handles, Span<const void*> grads, Span<std::uint8_t> dtypes,
                           bool with_norm = false) {
    check_size("grads", grads.size(), handles);
    check_size("dtypes", dtypes.size(), handles);
    auto plan = make<octavo_engine_plan>();
    expect(octavo_engine_begin(get(), handles.data(), grads.data(), dtypes.data(), handles.size(),
                               with_norm ? 1 : 0, &plan));
    return plan;
  }
  std::int64_t workspace_bytes(std::uint32_t device_kind, std::int32_t device_index) const {
    return expect_bytes(octavo_engine_workspace_bytes(get(), device_kind, device_index));
  }
  std::int64_t staging_bytes(std::uint32_t device_kind, std::int32_t device_index) const {
    return expect_bytes(octavo_engine_staging_bytes(get(), device_kind, device_index));
  }
  void norm(const octavo_engine_args& args, Span<octavo_engine_norm_part> parts,
            const Combine& combine = nullptr) {
    Combining call{combine};
    expect(octavo_engine_norm(get(), &args, parts.data(), parts.size(), call.function(), &call), call);
  }
  octavo_step_report step(const octavo_engine_args& args) {
    auto report = make<octavo_step_report>();
    expect(octavo_engine_step(get(), &args, &report));
    return report;
  }

  // Gradient release. `own` may be null.
  octavo_step_report ready(const octavo_engine_args& args, octavo_device_norm* own,
                           const Combine& combine = nullptr) {
    Combining call{combine};
    auto report = make<octavo_step_report>();
    expect(octavo_engine_ready(get(), &args, own, call.function(), &call, &report), call);
    return report;
  }
  void finish(const octavo_engine_args& args, Span<octavo_engine_norm_part> parts,
              const Combine& combine = nullptr) {
    Combining call{combine};
    expect(octavo_engine_finish(get(), &args, parts.data(), parts.size(), call.function(), &call), call);
  }
  void forget_ready() { octavo_engine_forget_ready(get()); }

  // Offload.
  void take(Handles handles, Span<const void*> grads, Span<std::uint8_t> dtypes, std::uint32_t device_kind,
            std::int32_t device_index, void* stream) {
    check_size("grads", grads.size(), handles);
    check_size("dtypes", dtypes.size(), handles);
    expect(octavo_engine_take(get(), handles.data(), grads.data(), dtypes.data(), handles.size(), device_kind,
                              device_index, stream));
  }
  bool holds(std::uint32_t handle) const { return octavo_engine_holds(get(), handle) != 0; }
  // drop, wait and refresh: no handles means all tensors.
  void drop(Handles handles = {}) { expect(octavo_engine_drop(get(), handles.data(), handles.size())); }
  void wait(Handles handles, Wait what, std::uint32_t device_kind, std::int32_t device_index, void* stream) {
    expect(octavo_engine_wait(get(), handles.data(), handles.size(), static_cast<std::uint32_t>(what),
                              device_kind, device_index, stream));
  }
  void refresh(Handles handles, Copy direction, std::uint32_t device_kind, std::int32_t device_index,
               void* stream) {
    expect(octavo_engine_refresh(get(), handles.data(), handles.size(), static_cast<std::uint32_t>(direction),
                                 device_kind, device_index, stream));
  }
  void synchronize() { expect(octavo_engine_synchronize(get())); }
  void set_order(Handles handles) { expect(octavo_engine_set_order(get(), handles.data(), handles.size())); }
  std::int64_t host_bytes() const { return expect_bytes(octavo_engine_host_bytes(get())); }

 private:
  struct Destroy {
    void operator()(octavo_engine* engine) const { octavo_engine_destroy(engine); }
  };
  // A Combine as the C functions call it. No exception may pass through them, so it is kept until they
  // return.
  struct Combining {
    const Combine& combine;
    std::exception_ptr failure = nullptr;

    octavo_engine_combine function() const { return combine ? &run : nullptr; }
    static std::int32_t run(void* self) {
      auto& call = *static_cast<Combining*>(self);
      try {
        call.combine();
        return 0;
      } catch (...) {
        call.failure = std::current_exception();
        return 1;
      }
    }
  };

  static void check_size(const char* what, std::int64_t size, Handles handles) {
    if (size == handles.size()) return;
    throw EngineError(1, std::string(what) + ": got " + std::to_string(size) + ", expected " +
                             std::to_string(handles.size()) + ", one per handle");
  }
  void expect(octavo_status status) const {
    if (status != 0) throw EngineError(status, octavo_last_error(), failed_tensor());
  }
  void expect(octavo_status status, const Combining& call) const {
    if (call.failure) std::rethrow_exception(call.failure);
    expect(status);
  }
  // A size of -1 is a failure.
  std::int64_t expect_bytes(std::int64_t bytes) const {
    expect(bytes < 0 ? 3 : 0);
    return bytes;
  }

  std::unique_ptr<octavo_engine, Destroy> engine_;
};

}  // namespace octavo
