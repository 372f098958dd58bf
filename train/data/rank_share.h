// How ranks share the batches of a run: each reads every `ranks`-th one, and all of them go on by the same
// positions. So the batches of a step are the same ones for any number of ranks.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <utility>

namespace octavo::train {

// Of `source`, whose rows_at any thread may call: an item is `ranks` batches in a row, and `rank` makes its
// own one of them. `Source` is Prefetch<T>::Source. REQUIRES: 0 <= rank < ranks.
template <class Source>
Source shared_by_rank(Source source, int rank, int ranks) {
  if (ranks == 1) return source;
  // The position after `count` batches from `position` on.
  const auto after = [rows_at = source.rows_at](std::uint64_t position, int count) {
    for (int i = 0; i < count; ++i) position += static_cast<std::uint64_t>(rows_at(position));
    return position;
  };
  return {[after, ranks](std::uint64_t position) {
            return static_cast<std::int64_t>(after(position, ranks) - position);
          },
          [after, rank, source = std::move(source)](std::uint64_t position, std::int64_t /*rows*/) {
            const std::uint64_t mine = after(position, rank);
            return source.make(mine, source.rows_at(mine));
          }};
}

}  // namespace octavo::train
