// Accumulates gradients in host memory and computes the sums that their norm needs.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/types.h>
#include "formula/step_args.h"

#include <cstdint>
#include <span>
#include <vector>

namespace octavo::offload {

// One gradient's contribution to the norm: the sums of its norm chunks (formula/norm.h), the bits of its
// largest magnitude and its number of elements that are not finite.
struct GradSums {
  std::vector<double> chunks;
  std::uint32_t max_bits = 0;
  std::int64_t nonfinite = 0;
};

// Computes to = from (if `first`), or to = to + from, rounded to `to_dtype` as torch adds in that dtype. If
// `sums` is not null, it is overwritten with the sums of the result. `threads` 0: the pool's.
Status add_gradient(void* to, DType to_dtype, const void* from, DType from_dtype, std::int64_t numel,
                    bool first, GradSums* sums, int threads);
// Computes the sums of a complete gradient.
Status sum_gradient(const GradView& grad, GradSums& sums, int threads);
// Returns the norm over gradients by one fixed tree, in their order. Overwrites `all`, their chunks.
GradNorm join_sums(std::span<double> all, std::uint32_t max_bits, std::int64_t nonfinite);

}  // namespace octavo::offload
