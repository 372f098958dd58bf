// Loads and stores single elements of parameters, gradients and states: fp32, bf16 and fp16 by definition,
// and the bits of a float.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>

#include <cstdint>

namespace reference {

inline constexpr std::uint32_t kNanBits = 0x7FC00000u;

std::uint32_t bits_of(float value);
float from_bits(std::uint32_t bits);
float canonical(float value);  // any NaN becomes 0x7FC00000

// Returns or sets element `index` of an array.
float load(octavo::DType dtype, const void* data, std::int64_t index);
void store_nearest(octavo::DType dtype, void* data, std::int64_t index, float value);

std::uint16_t bf16_nearest(float value);
std::uint16_t bf16_stochastic(float value, std::uint32_t rand16);

}  // namespace reference
