// Counts and places the windows of a range of text; see text.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/text/text.h"

#include <algorithm>

namespace octavo_train {

std::int64_t sample_count(const TextRange& range, std::int64_t block_size, std::int64_t max_samples) {
  const std::int64_t all = std::max<std::int64_t>(range.size() - 1, 0) / block_size;
  return max_samples < 0 ? all : std::min(all, max_samples);
}

std::vector<std::int64_t> evaluation_offsets(const TextRange& range, std::int64_t block_size,
                                             std::int64_t limit) {
  const std::int64_t all = sample_count(range, block_size, -1);
  const std::int64_t taken = sample_count(range, block_size, limit);
  std::vector<std::int64_t> out;
  out.reserve(static_cast<std::size_t>(taken));
  // `window` is i * all / taken, rounded down, computed without a multiplication that could overflow.
  std::int64_t window = 0;
  std::int64_t remainder = 0;
  for (std::int64_t i = 0; i < taken; ++i) {
    out.push_back(range.begin + window * block_size);
    window += all / taken;
    remainder += all % taken;
    if (remainder >= taken) {
      remainder -= taken;
      ++window;
    }
  }
  return out;
}

}  // namespace octavo_train
