// The ceiling that benchmarks compare with: how fast this machine copies memory with the same number of
// threads. Shared machines change speed from minute to minute, so copies are timed right before and right
// after what is compared.
// SPDX-License-Identifier: MIT
#pragma once

#include "bench_memory.h"

#include <cstdint>
#include <string>
#include <vector>

namespace octavo::cli {

// Of at least one value; the mean of the middle two where their number is even.
double median(std::vector<double> values);

// Seconds of some copies, by each of the two ways.
struct CopySamples {
  std::vector<double> memcpy_s;  // the C library's
  std::vector<double> stream_s;  // our loop of streaming stores
};

class CopyMeter {
 public:
  // Buffers of 1 GiB each side, less when memory is short (then note() says so); a Failure if there is too
  // little.
  explicit CopyMeter(int threads);

  // `repeat` copies by each way, in turns.
  CopySamples sample(int repeat);

  // The better way's median over both sets of samples; 10^9 bytes a second, read and written bytes counted.
  [[nodiscard]] double gb_per_s(const CopySamples& before, const CopySamples& after) const;

  [[nodiscard]] std::int64_t bytes() const { return from_.size(); }
  [[nodiscard]] const std::string& note() const { return note_; }

 private:
  int threads_;
  PageBuffer from_, to_;
  std::string note_;
};

}  // namespace octavo::cli
