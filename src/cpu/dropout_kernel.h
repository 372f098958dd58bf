// Applies dropout to a run of one sample's elements, in tiles that stay in the first-level cache.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/kernels.h"
#include "cpu/tile_io.h"

namespace octavo::cpu {

// Drops elements from number `element` on. Elements between two multiples of kDropoutPair have consecutive
// counters and use the same half of their bits. The last vector of such a part writes past its end, and the
// next part overwrites that.
template <class L>
inline void drop_tile(const DropTask& t, std::uint64_t element, const float* from, std::int64_t count,
                      float* to) {
  using F = typename L::F;
  using I = typename L::I;
  for (std::int64_t at = 0; at < count;) {
    const std::uint64_t first = element + static_cast<std::uint64_t>(at);
    const auto room = formula::kDropoutPair - static_cast<std::int64_t>(first % formula::kDropoutPair);
    const std::int64_t n = count - at < room ? count - at : room;
    const formula::DropoutPlace place = formula::dropout_place(first);
    const auto high_word = formula::high_word(t.key, static_cast<std::uint32_t>(place.counter >> 32));
    for (std::int64_t i = 0; i < n; i += L::kWidth) {
      const auto low = static_cast<std::uint32_t>(place.counter + static_cast<std::uint64_t>(i));
      const I random = formula::mix32(I::of(low) + L::iota(), I::of(t.key.low), I::of(high_word));
      const F kept = formula::drop(L::load(from + at + i), formula::dropout_half(random, place.high),
                                   I(t.how.threshold), F(t.how.scale));
      L::store(formula::canonical(kept), to + at + i);
    }
    at += n;
  }
}

template <class L>
void drop_run(const DropTask& t) {
  static_assert(kPad >= 2 * L::kWidth);
  for (std::int64_t at = 0; at < t.count; at += kTile) {
    const std::int64_t n = t.count - at < kTile ? t.count - at : kTile;
    load_values<L>(t.from, t.dtype, t.at + at, n, t.scratch->grad);
    drop_tile<L>(t, t.element + static_cast<std::uint64_t>(at), t.scratch->grad, n, t.scratch->param);
    store_values<L>(t.scratch->param, n, t.to, t.dtype, t.at + at);
  }
}

}  // namespace octavo::cpu
