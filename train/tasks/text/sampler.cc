// See sampler.h.
// SPDX-License-Identifier: MIT
#include "train/tasks/text/sampler.h"

#include <algorithm>
#include <utility>

namespace octavo_train {

Sampler::Sampler(TextRange range, std::int64_t block_size, Order order)
    : range_(std::move(range)), block_size_(block_size), order_(order) {
  const std::int64_t samples = order_.samples();
  if (samples < sample_count(range_, block_size, -1)) range_.end = range_.begin + samples * block_size + 1;
}

std::int64_t Sampler::offset(std::uint64_t draw) const {
  const std::uint64_t epoch = order_.epoch(draw);
  const auto shift = static_cast<std::int64_t>(
      epoch == 0 ? 0 : order_.noise(epoch) % static_cast<std::uint64_t>(block_size_));
  const std::int64_t last = range_.end - block_size_ - 1;
  return std::min(range_.begin + order_.sample(draw) * block_size_ + shift, last);
}

void Sampler::read(std::uint64_t draw, std::span<std::uint8_t> out) const {
  range_.corpus.read(offset(draw), out);
}

}  // namespace octavo_train
