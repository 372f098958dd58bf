// Messages of FP8's functions, and the checks that they share.
// SPDX-License-Identifier: MIT
#pragma once

#include "status/invalid_argument.h"

#include <octavo/fp8.h>

#include <string>

namespace octavo::fp8 {

inline constexpr const char* kWhere = "[fp8] ";
inline constexpr InvalidArgument refuse{kWhere};

// A value that the vocabulary does not have, beside all that it has.
template <class E>
Status check_enum(const std::string& field, E value) {
  if (name(value) != "unknown") return {};
  std::string known;
  for (std::uint32_t i = 0; name(static_cast<E>(i)) != "unknown"; ++i) {
    known += (i == 0 ? "" : ", ") + std::to_string(i) + " (" + std::string(name(static_cast<E>(i))) + ")";
  }
  return refuse(field, static_cast<std::int64_t>(value), "one of " + known);
}

// A known device, its stream and threads.
Status check_call(Device device, const void* stream, int threads);
// The numbers of delayed scaling.
Status check_history(std::int64_t length, AmaxAlgo algo, int margin);

}  // namespace octavo::fp8
