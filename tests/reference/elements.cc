// See elements.h.
// SPDX-License-Identifier: MIT
#include "tests/reference/elements.h"

#include "tests/reference/minifloat.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace reference {

std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
float canonical(float value) { return std::isnan(value) ? from_bits(kNanBits) : value; }

float load(octavo::DType dtype, const void* data, std::int64_t index) {
  if (dtype == octavo::DType::f32) {
    float value;
    std::memcpy(&value, static_cast<const char*>(data) + 4 * index, 4);
    return value;
  }
  std::uint16_t code;
  std::memcpy(&code, static_cast<const char*>(data) + 2 * index, 2);
  return static_cast<float>((dtype == octavo::DType::bf16 ? kBf16 : kFp16).value(code));
}

std::uint16_t bf16_nearest(float value) {
  if (std::isnan(value)) return 0x7FC0;
  const auto magnitude = kBf16.nearest_magnitude(value, false);
  return static_cast<std::uint16_t>(magnitude | (std::signbit(value) ? 0x8000u : 0u));
}

std::uint16_t bf16_stochastic(float value, std::uint32_t rand16) {
  if (std::isnan(value)) return 0x7FC0;
  if (std::isinf(value)) return std::signbit(value) ? 0xFF80 : 0x7F80;
  return static_cast<std::uint16_t>((bits_of(value) + rand16) >> 16);
}

void store_nearest(octavo::DType dtype, void* data, std::int64_t index, float value) {
  if (dtype == octavo::DType::f32) {
    const float stored = canonical(value);
    std::memcpy(static_cast<char*>(data) + 4 * index, &stored, 4);
    return;
  }
  std::uint16_t code = 0x7E00;
  if (dtype == octavo::DType::bf16) {
    code = bf16_nearest(value);
  } else if (!std::isnan(value)) {
    const auto magnitude = kFp16.nearest_magnitude(value, false);
    code = static_cast<std::uint16_t>(magnitude | (std::signbit(value) ? 0x8000u : 0u));
  }
  std::memcpy(static_cast<char*>(data) + 2 * index, &code, 2);
}

}  // namespace reference
