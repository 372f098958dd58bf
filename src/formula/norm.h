// The definition of the gradient norm's sum for every backend. Each chunk of kNormChunk elements has
// kNormSums interleaved double sums, which are joined by halves. Then neighbouring chunks are joined in
// pairs, level by level. Squares of floats are exact in double. This definition must never be tuned.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

namespace octavo::formula {

inline constexpr std::int64_t kNormChunk = 65536;
inline constexpr int kNormSums = 16;

// Above this magnitude (the bits of the largest float whose square is finite) an element counts as
// non-finite.
inline constexpr std::int32_t kLargestSquarable = 0x5F7FFFFF;

}  // namespace octavo::formula
