// The state formats as docs/formats.md defines them, one element at a time and slow on purpose. They are
// written from the definitions and share no code with src/. Tests compare the library's bytes with these.
// SPDX-License-Identifier: MIT
#pragma once

#include "tests/reference/elements.h"

#include <octavo/codec.h>
#include <octavo/types.h>

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace reference {

// Returns the value of each code.
const std::array<float, 256>& map_8bit(octavo::Moment moment);
const std::array<float, 16>& map_4bit(octavo::Moment moment);
// The values of fp4 and fp3 ("small floats"), by code.
const std::vector<float>& map_small_float(octavo::StateFormat format, octavo::Moment moment);
bool is_small_float(octavo::StateFormat format);

struct Encoded {
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};

// Returns 16 random bits of an element. Only bf16 second moments and small floats use them, and only in a
// step.
using Rand16 = std::function<std::uint32_t(std::int64_t index)>;

Encoded encode(const octavo::MomentSpec& spec, std::span<const float> values, const Rand16& rand16 = {});
std::vector<float> decode(const octavo::MomentSpec& spec, std::span<const std::uint8_t> codes,
                          std::span<const float> scales);

// Return the sizes of the two buffers.
std::int64_t codes_bytes(const octavo::MomentSpec& spec);
std::int64_t scale_count(const octavo::MomentSpec& spec);

}  // namespace reference
