// Which window a draw gives. Draws are counted over the whole run; the sampler is a function of the draw's
// number and has no other state, so a run resumes at any draw, and every machine and any number of threads
// give the same order.
//
// Draws start, start + 1, … go through `samples` windows in a random order, each once per epoch, and every
// epoch has an order of its own. From the second epoch on the windows are shifted by a random part of a
// block, the same for all of an epoch, so that the text is cut elsewhere. No window leaves the first
// `samples` blocks (and their last target): the last one moves back as far as needed.
//
// When the number of samples changes, by the next stage or because a run was resumed with another
// max_samples, a new Sampler begins with start = the draws so far. So a checkpoint keeps samples() and
// start(). A resumed run continues with them if the number of samples is the same; otherwise it begins a new
// Sampler in this way.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/data/text.h"

#include <cstdint>

namespace octavo::train {

// A random order of 0 … size - 1: a bijection that is computed, without a table.
class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t key);                 // REQUIRES: 1 <= size <= 2^62
  [[nodiscard]] std::uint64_t operator()(std::uint64_t index) const;  // REQUIRES: index < size

 private:
  std::uint64_t size_;
  std::uint64_t key_;
  int half_bits_;
};

class Sampler {
 public:
  // REQUIRES: 1 <= samples <= sample_count(range, block_size, -1).
  Sampler(TextRange range, std::int64_t block_size, std::int64_t samples, std::uint64_t seed,
          std::uint64_t start);

  // Of the window's first byte in the corpus. REQUIRES: draw >= start().
  [[nodiscard]] std::int64_t offset(std::uint64_t draw) const;

  // The window's block_size + 1 bytes. REQUIRES: draw >= start(), as many bytes in `out`.
  void read(std::uint64_t draw, std::span<std::uint8_t> out) const;

  [[nodiscard]] std::int64_t samples() const { return samples_; }
  [[nodiscard]] std::uint64_t start() const { return start_; }
  [[nodiscard]] std::int64_t block_size() const { return block_size_; }
  [[nodiscard]] std::uint64_t epoch(std::uint64_t draw) const;  // since start()

 private:
  TextRange range_;  // ends where the last of the samples does
  std::int64_t block_size_;
  std::int64_t samples_;
  std::uint64_t key_;
  std::uint64_t start_;
};

}  // namespace octavo::train
