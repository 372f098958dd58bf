// How the chunks of gradients become their norm, on the host: for gradients that were summed at once, and for
// those that were summed one by one as they came.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/narrow.h"
#include "formula/norm.h"
#include "formula/step_args.h"
#include "optimizers/tree_sum.h"

#include <atomic>
#include <bit>
#include <cmath>

namespace octavo {

inline std::int64_t chunks_of(std::int64_t numel) {
  return (numel + formula::kNormChunk - 1) / formula::kNormChunk;
}

inline void raise_maximum(std::atomic<std::uint32_t>& max_bits, std::uint32_t to) {
  for (std::uint32_t old = max_bits.load(); old < to && !max_bits.compare_exchange_weak(old, to);) {
  }
}

// Overwrites the sums.
inline GradNorm join_chunks(std::span<double> sums, std::uint32_t max_bits, std::int64_t nonfinite) {
  const auto max = formula::canonical(scalar::F32(std::bit_cast<float>(max_bits)));
  return {std::sqrt(tree_sum(sums)), static_cast<double>(max.v), nonfinite};
}

}  // namespace octavo
