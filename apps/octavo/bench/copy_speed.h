// The ceiling that benchmarks compare with: how fast a device copies its own memory. Shared machines change
// speed from minute to minute, so copies are timed right before and right after what is compared.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/bench/device.h"

#include <cstdint>
#include <string>
#include <vector>

namespace octavo::cli {

// Of at least one value; the mean of the middle two where their number is even.
double median(std::vector<double> values);

// Milliseconds of some copies, by each of the two ways.
struct CopySamples {
  std::vector<double> library, streaming;
};

class CopyMeter {
 public:
  // Buffers of 1 GiB each side, less when memory is short (then note() says so); a Failure if there is too
  // little. The device must outlive it.
  explicit CopyMeter(BenchDevice& device);

  // `repeat` copies by each way.
  CopySamples sample(int repeat);

  // The better way's median over both sets of samples; 10^9 bytes a second, read and written bytes counted.
  [[nodiscard]] double gb_per_s(const CopySamples& before, const CopySamples& after) const;

  [[nodiscard]] std::int64_t bytes() const { return from_.size; }
  [[nodiscard]] const std::string& note() const { return note_; }

 private:
  BenchDevice& device_;
  Buffer from_, to_;
  std::string note_;
};

}  // namespace octavo::cli
