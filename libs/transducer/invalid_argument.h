// The messages of the transducer loss, and declarations that its files of checks share.
// SPDX-License-Identifier: MIT
#pragma once

#include "status/invalid_argument.h"
#include "transducer/backend.h"

#include <array>
#include <string>

namespace octavo::transducer {

inline constexpr const char* kWhere = "[transducer] ";
inline constexpr InvalidArgument invalid{kWhere};
inline std::string element(const std::string& field, std::int64_t i) {
  return field + "[" + std::to_string(i) + "]";
}

inline std::int64_t duration_outputs(const TransducerArgs& args) {
  return static_cast<std::int64_t>(args.durations.size());
}

// Returns the bytes of the targets that may be read.
std::int64_t target_bytes(const TransducerArgs& args);

// Rejects buffers that are null, misaligned or too large. REQUIRES: sizes that check_lengths accepts, with at
// least one clip.
Status check_logits(const TransducerArgs& args);
// Rejects such buffers of the joint network. REQUIRES: sizes that check_joint_sizes accepts.
Status check_joint_memory(const TransducerArgs& args, const TransducerJoint& joint);
// REQUIRES: checked options and lengths.
Status check_joint_numbers(const TransducerArgs& args, const TransducerJoint& joint);

// A buffer with its name in messages.
struct Buffer {
  const char* name;
  std::span<const std::byte> bytes;
};
inline std::span<const std::byte> bytes_of(const void* data, std::int64_t bytes) {
  return {static_cast<const std::byte*>(data), static_cast<std::size_t>(bytes > 0 ? bytes : 0)};
}
// Returns durations, targets and lengths.
std::array<Buffer, 4> indices(const TransducerArgs& args);
Status check_apart(const Buffer& written, std::span<const Buffer> others);
inline std::int64_t loss_bytes(const TransducerArgs& args) {
  return 4 * (args.reduction == TransducerReduction::none ? args.batch : 1);
}

}  // namespace octavo::transducer
