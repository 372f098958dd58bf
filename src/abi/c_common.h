// Helpers of all functions of the C ABI: errors, and checked reads and writes of a caller's structs.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/step_args.h"

#include <octavo/octavo.h>

#include <cstddef>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <vector>

namespace octavo::c {

// Keeps a failure's message for octavo_last_error.
octavo_status report(const Status& status);
octavo_status report_no_memory();

// Runs the body of a C function. No exception may leave one, but inside failures are exceptions: those of the
// helpers below, of Result::value, and of a lack of memory or threads.
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

// guarded() for a function that does not return a status: returns the result of `fn`, or `failed` with the
// error kept for octavo_last_error.
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

// A caller's struct, after a check of its pointer and its struct_size.
template <class T>
const T& read_struct(const char* name, const T* from) {
  check_given(name, from);
  if (from->struct_size != sizeof(T)) {
    refuse(std::string(name) + ".struct_size: got " + std::to_string(from->struct_size) +
           ", expected sizeof, " + std::to_string(sizeof(T)));
  }
  return *from;
}

// Writes a result into a caller's struct, after the same checks.
template <class T>
Status write_struct(const char* name, T value, T* to) {
  value.struct_size = read_struct(name, to).struct_size;
  *to = value;
  return {};
}

inline void check_array(const char* name, const void* array, int64_t count) {
  if (count < 0 || count > (int64_t{1} << 32))
    refuse("count: got " + std::to_string(count) + ", expected 0 to 2^32");
  if (count > 0) check_given(name, array);
}

// Converts an array of structs, after a check of each.
template <class To, class From, class Fn>
std::vector<To> convert_all(const char* name, const From* array, int64_t count, Fn&& convert) {
  check_array(name, array, count);
  std::vector<To> list;
  list.reserve(static_cast<std::size_t>(count));
  for (int64_t i = 0; i < count; ++i) list.push_back(convert(read_struct(name, array + i)));
  return list;
}

inline Device device(uint32_t kind, int32_t index) { return {static_cast<DeviceKind>(kind), index}; }

// A workspace as a span; null has no bytes, whatever its size says.
inline std::span<std::byte> workspace_span(void* workspace, int64_t bytes) {
  if (bytes < 0) refuse("workspace_bytes: got " + std::to_string(bytes) + ", expected at least 0");
  return {static_cast<std::byte*>(workspace), workspace == nullptr ? 0 : static_cast<std::size_t>(bytes)};
}

}  // namespace octavo::c
