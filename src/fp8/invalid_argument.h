// Error messages of FP8 functions, and checks that they share.
// SPDX-License-Identifier: MIT
#pragma once

#include "status/invalid_argument.h"

#include <octavo/fp8.h>

#include <string>

namespace octavo::fp8 {

inline constexpr const char* kWhere = "[fp8] ";
inline constexpr InvalidArgument invalid{kWhere};

// Checks an enumerator; the message lists all valid ones.
template <class E>
Status check_enum(const std::string& field, E value) {
  if (name(value) != "unknown") return {};
  std::string known;
  for (std::uint32_t i = 0; name(static_cast<E>(i)) != "unknown"; ++i) {
    known += (i == 0 ? "" : ", ") + std::to_string(i) + " (" + std::string(name(static_cast<E>(i))) + ")";
  }
  return invalid(field, static_cast<std::int64_t>(value), "one of " + known);
}

// Checks the device, its stream and the number of threads.
Status check_call(Device device, const void* stream, int threads);
// Checks the options of delayed scaling.
Status check_history(std::int64_t length, AmaxAlgo algo, int margin);

}  // namespace octavo::fp8
