// Descriptions of the state formats: how each moment is stored. Adapters and tools read them here (in C:
// octavo_format) and have no separate tables.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/export.h>
#include <octavo/types.h>

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace octavo {

// The factor of a code: none, the scale of its block, or the smallest of its axes' maxima.
enum class ScalePolicy : std::uint32_t { none = 0, block = 1, axis = 2 };
enum class Rounding : std::uint32_t { nearest = 0, stochastic = 1 };

// One moment in one format.
struct MomentFormat {
  int bits = 0;  // the size of a code
  ScalePolicy scale = ScalePolicy::none;
  Rounding rounding = Rounding::nearest;  // in a step; conversions round to nearest
  // The element type of the codes. "float32", "bfloat16", "uint8", "float8_e4m3fn" and "float8_e5m2" have one
  // element per element of the parameter; "packed" is a row of bytes.
  std::string_view element;
  int zero_code = -1;  // the code that is zero with any scale; -1: the format has none
};

struct FormatInfo {
  StateFormat number = StateFormat::fp32;
  std::string_view name;
  std::span<const std::string_view> aliases;  // other names that parse
  std::int64_t default_block = 0;             // 0: no blocks
  // The format of tensors with fewer than two dimensions, because axis scales need two.
  StateFormat format_for_1d = StateFormat::fp32;
  std::array<MomentFormat, 2> moment;  // by Moment
};

// Returns every compiled format in the order of their numbers.
OCTAVO_API std::span<const FormatInfo> formats();
// Returns null for an unknown format.
OCTAVO_API const FormatInfo* describe(StateFormat format);

}  // namespace octavo
