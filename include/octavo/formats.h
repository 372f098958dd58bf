// Descriptions of the state formats: what a format keeps of each moment, and how. Adapters and tools read
// them here (in C: octavo_format) and keep no tables of their own.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/export.h>
#include <octavo/types.h>

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace octavo {

// What a code is multiplied by: nothing, the scale of its block, or the smallest of its axes' maxima.
enum class ScalePolicy : std::uint32_t { none = 0, block = 1, axis = 2 };
enum class Rounding : std::uint32_t { nearest = 0, stochastic = 1 };

// One moment in one format.
struct MomentFormat {
  int bits = 0;  // of a code
  ScalePolicy scale = ScalePolicy::none;
  Rounding rounding = Rounding::nearest;  // in a step; conversions round to nearest
  // What holds the codes: "float32", "bfloat16", "uint8", "float8_e4m3fn" and "float8_e5m2" have one element
  // per element of the parameter, "packed" is a row of bytes.
  std::string_view element;
  int zero_code = -1;  // the code that is zero whatever its scale; -1: there is none
};

struct FormatInfo {
  StateFormat number = StateFormat::fp32;
  std::string_view name;
  std::span<const std::string_view> aliases;  // other names that parse
  std::int64_t default_block = 0;             // 0: no blocks
  // Axis scales need two dimensions: the format that a tensor with fewer is stored in.
  StateFormat format_for_1d = StateFormat::fp32;
  std::array<MomentFormat, 2> moment;  // by Moment
};

// Every compiled format, in the order of their numbers. Unknown: null.
OCTAVO_API std::span<const FormatInfo> formats();
OCTAVO_API const FormatInfo* describe(StateFormat format);

}  // namespace octavo
