// The rank-1 scales of a tile: raises the maxima of rows and columns by its moments, and computes the scale
// of each element from them (cpu/rank1.h). Arrays of columns are padded to the next full vector.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/kernels.h"

#include <bit>

namespace octavo::cpu {

// Calls f(row, first column, length, offset in the range) for the rows of [at, at + n).
template <class L, class Fn>
inline void for_rows(std::int64_t columns, std::int64_t at, std::int64_t n, Fn&& f) {
  std::int64_t row = at / columns;
  std::int64_t column = at - row * columns;
  for (std::int64_t done = 0; done < n;) {
    const std::int64_t run = columns - column < n - done ? columns - column : n - done;
    f(row, column, run, done);
    done += run;
    column = 0;
    ++row;
  }
}

// Raises maxima to the magnitudes of n values. `rows` begins with row `first`.
template <class L>
inline void raise_maxima(std::int64_t columns, const float* values, std::int64_t at, std::int64_t n,
                         std::int64_t first, float* rows, float* column_maxima) {
  using I = typename L::I;
  constexpr std::int64_t kW = L::kWidth;
  for_rows<L>(columns, at, n,
              [&](std::int64_t row, std::int64_t column, std::int64_t run, std::int64_t done) {
                const float* const from = values + done;
                float* const to = column_maxima + column;
                I high(0);
                std::int64_t i = 0;
                for (; i + kW <= run; i += kW) {
                  const I size = bits(L::load(from + i)) & I(0x7FFFFFFF);
                  high = max(high, size);
                  L::store(from_bits(max(bits(L::load(to + i)), size)), to + i);
                }
                std::uint32_t highest = L::reduce_max_u31(high);
                const auto raise_maximum = [](float& maximum, std::uint32_t by) {
                  if (std::bit_cast<std::uint32_t>(maximum) < by) maximum = std::bit_cast<float>(by);
                };
                for (; i < run; ++i) {
                  const std::uint32_t size = std::bit_cast<std::uint32_t>(from[i]) & 0x7FFFFFFFU;
                  raise_maximum(to[i], size);
                  highest = size > highest ? size : highest;
                }
                raise_maximum(rows[row - first], highest);
              });
}

// Writes join(row, column) for each of n elements to `out`, which is padded to the next full vector.
template <class L, class Join>
inline void join_folded(const Fold& fold, const float* folded, std::int64_t at, std::int64_t n, float* out,
                        Join&& join) {
  using F = typename L::F;
  const float* const columns = folded + fold.rows;
  for_rows<L>(fold.columns, at, n,
              [&](std::int64_t row, std::int64_t column, std::int64_t run, std::int64_t done) {
                const F one(folded[row]);
                for (std::int64_t i = 0; i < run; i += L::kWidth)
                  L::store(join(one, L::load(columns + column + i)), out + done + i);
              });
}

// The first function computes the scale of each element from folded scales, the second the reciprocal of its
// new scale from folded reciprocals.
template <class L>
inline void element_scales(const Fold& fold, const float* folded, std::int64_t at, std::int64_t n,
                           float* out) {
  using F = typename L::F;
  join_folded<L>(fold, folded, at, n, out, [](F a, F b) { return from_bits(min(bits(a), bits(b))); });
}
template <class L>
inline void element_inverses(const Fold& fold, const float* folded, std::int64_t at, std::int64_t n,
                             float* out) {
  using F = typename L::F;
  join_folded<L>(fold, folded, at, n, out, [](F a, F b) { return max(a, b); });
}

}  // namespace octavo::cpu
