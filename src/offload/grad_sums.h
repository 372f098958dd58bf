// Gradients in host memory: added up as they come, with the sums that the norm needs.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/grad_norm.h>
#include <octavo/types.h>

#include <cstdint>
#include <span>
#include <vector>

namespace octavo::offload {

// What the norm needs of one gradient: the sums of its chunks (formula/norm.h), its largest magnitude and how
// many elements are not finite. Whatever was there before is replaced.
struct GradSums {
  std::vector<double> chunks;
  std::uint32_t max_bits = 0;
  std::int64_t nonfinite = 0;
};

// to = from (`first`), or to + from, rounded to `to_dtype` as torch adds in that dtype. With `sums` (null:
// none) those of the result are taken on the way. `threads` as everywhere.
Status add_gradient(void* to, DType to_dtype, const void* from, DType from_dtype, std::int64_t numel,
                    bool first, GradSums* sums, int threads);
// The sums of a gradient that is there already.
Status sum_gradient(const GradView& grad, GradSums& sums, int threads);
// The norm over gradients by the one tree, in their order. Overwrites `all`, the chunks of all of them.
GradNorm join_sums(std::span<double> all, std::uint32_t max_bits, std::int64_t nonfinite);

}  // namespace octavo::offload
