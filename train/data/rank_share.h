// Divides the batches of a run among ranks: each rank reads every `ranks`-th batch, and all advance by the
// same positions. So the batches of a step are the same for any number of ranks.
// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <utility>

namespace octavo_train {

// Returns a source in which an item spans `ranks` consecutive batches of `source`, of which `make` produces
// the one of `rank`. Any thread may call source.rows_at. `Source` is Prefetch<T>::Source. REQUIRES: 0 <= rank
// < ranks.
template <class Source>
Source shared_by_rank(Source source, int rank, int ranks) {
  if (ranks == 1) return source;
  // Returns the position after `count` batches that begin at `position`.
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

}  // namespace octavo_train
