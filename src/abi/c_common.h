// What the functions of the C ABI share: their errors, and a caller's structs in the form that this library
// knows.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/step_args.h"

#include <octavo/octavo.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <vector>

namespace octavo::c {

// Keeps a failure's message for octavo_last_error.
octavo_status report(const Status& status);
octavo_status report_no_memory();

// No exception may leave a C function. Inside one, failures are exceptions: those of the helpers below, of
// Result::value, and of a lack of memory or threads.
template <class Fn>
octavo_status guarded(Fn&& fn) noexcept {
  try {
    try {
      return report(fn());
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const Error& error) {
      return report({error.code(), error.what()});
    } catch (const std::exception& error) {
      return report(Status::failed(std::string("[octavo] ") + error.what()));
    }
  } catch (...) {
    return report_no_memory();
  }
}

// guarded() of a function whose result is no status: the result of `fn`, or `failed` with the error kept for
// octavo_last_error.
template <class T, class Fn>
T value_or(T failed, Fn&& fn) noexcept {
  T value = failed;
  const octavo_status status = guarded([&]() -> Status {
    value = fn();
    return {};
  });
  return status == 0 ? value : failed;
}

[[noreturn]] inline void refuse(const std::string& message) {
  throw Error(Status::invalid("[octavo] " + message));
}
inline void check_given(const char* name, const void* argument) {
  if (argument == nullptr) refuse(std::string(name) + ": got null");
}

// The size of a struct's first version, which is the least that a caller may pass. For a struct that has
// grown it ends before the first new field.
template <class T>
constexpr std::size_t kFirstSize = sizeof(T);
template <>
constexpr std::size_t kFirstSize<octavo_group_config> = offsetof(octavo_group_config, device_kind);
template <>
constexpr std::size_t kFirstSize<octavo_step_args> = offsetof(octavo_step_args, stream);
template <>
constexpr std::size_t kFirstSize<octavo_engine_args> = offsetof(octavo_engine_args, add_sums);
template <>
constexpr std::size_t kFirstSize<octavo_engine_tensor> = offsetof(octavo_engine_tensor, residence);
template <>
constexpr std::size_t kFirstSize<octavo_engine_device> = offsetof(octavo_engine_device, staging);
template <>
constexpr std::size_t kFirstSize<octavo_step_report> = offsetof(octavo_step_report, pending);
template <>
constexpr std::size_t kFirstSize<octavo_dropout_args> = offsetof(octavo_dropout_args, row);

// A caller's struct in the form that this library knows. Fields that the caller's version does not have are
// zero.
template <class T>
T read_struct(const char* name, const T* from) {
  check_given(name, from);
  if (from->struct_size < kFirstSize<T> || from->struct_size > 65536) {
    refuse(std::string(name) + ".struct_size: got " + std::to_string(from->struct_size) +
           ", expected sizeof, " + std::to_string(sizeof(T)));
  }
  T copy{};
  std::memcpy(&copy, from, std::min<std::size_t>(from->struct_size, sizeof(T)));
  return copy;
}

// Writes results into a struct of the caller's size, keeping its struct_size.
template <class T>
Status write_struct(const char* name, const T& value, T* to) {
  const std::uint32_t size = read_struct(name, to).struct_size;
  std::memcpy(to, &value, std::min<std::size_t>(size, sizeof(T)));
  to->struct_size = size;
  return {};
}

inline void check_array(const char* name, const void* array, int64_t count) {
  if (count < 0 || count > (int64_t{1} << 32))
    refuse("count: got " + std::to_string(count) + ", expected 0 to 2^32");
  if (count > 0) check_given(name, array);
}

// An array of structs of the caller's size; the first says how far apart they lie.
template <class To, class From, class Fn>
std::vector<To> convert_all(const char* name, const From* array, int64_t count, Fn&& convert) {
  check_array(name, array, count);
  std::vector<To> list;
  list.reserve(static_cast<std::size_t>(count));
  const auto* at = reinterpret_cast<const std::byte*>(array);
  for (int64_t i = 0; i < count; ++i, at += array->struct_size) {
    const auto* from = reinterpret_cast<const From*>(at);
    const From one = read_struct(name, from);
    if (one.struct_size != array->struct_size || one.struct_size % alignof(From) != 0) {
      refuse(std::string(name) + "[" + std::to_string(i) + "].struct_size: got " +
             std::to_string(one.struct_size) + ", expected that of " + name + "[0], a multiple of " +
             std::to_string(alignof(From)));
    }
    list.push_back(convert(one));
  }
  return list;
}

// A workspace as a span; null has no bytes, whatever its size says.
inline std::span<std::byte> workspace_span(void* workspace, int64_t bytes) {
  if (bytes < 0) refuse("workspace_bytes: got " + std::to_string(bytes) + ", expected at least 0");
  return {static_cast<std::byte*>(workspace), workspace == nullptr ? 0 : static_cast<std::size_t>(bytes)};
}

// But for the workspace.
inline StepArgs step_args(const octavo_step_args& c) {
  StepArgs step;
  step.hyper = {c.lr,       c.beta1,     c.beta2,         c.eps,           c.weight_decay,
                c.momentum, c.dampening, c.nesterov != 0, c.maximize != 0, static_cast<Decay>(c.decay)};
  std::copy(std::begin(c.own), std::end(c.own), step.hyper.own);
  step.step = c.step;
  step.grad_factor = c.grad_factor;
  step.guard = c.guard != 0;
  step.seed = c.seed;
  step.threads = c.threads;
  step.max_norm = c.max_norm;
  step.stream = c.stream;
  step.scalars = {c.scalar_lr,
                  c.scalar_step,
                  c.scalar_loss_scale,
                  c.scalar_found_inf,
                  reinterpret_cast<const GradNorm*>(c.scalar_norm),
                  reinterpret_cast<StepReport*>(c.scalar_report)};
  return step;
}

}  // namespace octavo::c
