// Messages of the transducer loss, and what its two files of checks share.
// SPDX-License-Identifier: MIT
#pragma once

#include "transducer/backend.h"

#include <string>

namespace octavo::transducer {

inline constexpr const char* kWhere = "[transducer] ";

inline Status refuse(const std::string& field, const std::string& got, const std::string& expected) {
  return Status::invalid(kWhere + field + ": got " + got + ", expected " + expected);
}
inline Status refuse(const std::string& field, std::int64_t got, const std::string& expected) {
  return refuse(field, std::to_string(got), expected);
}
inline std::string element(const std::string& field, std::int64_t i) {
  return field + "[" + std::to_string(i) + "]";
}

inline std::int64_t duration_outputs(const TransducerArgs& args) {
  return static_cast<std::int64_t>(args.durations.size());
}

// The bytes of the targets that may be read.
std::int64_t target_bytes(const TransducerArgs& args);

// Null, misaligned or too large. REQUIRES: sizes that check_lengths accepts, with at least one clip.
Status check_logits(const TransducerArgs& args);

}  // namespace octavo::transducer
