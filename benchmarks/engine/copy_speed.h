// Measures how fast a device copies its own memory: the ceiling that benchmarks compare with. The speed of
// shared machines changes from minute to minute, so copies are timed right before and right after each
// measurement.
// SPDX-License-Identifier: MIT
#pragma once

#include "benchmarks/engine/device.h"

#include <cstdint>
#include <string>
#include <vector>

namespace octavo::cli {

// Returns the median, which is the mean of the middle two for an even number of values. REQUIRES: at least
// one value.
double median(std::vector<double> values);

// Copy times in milliseconds, for each of the two copy methods.
struct CopySamples {
  std::vector<double> library, streaming;
};

class CopyMeter {
 public:
  // Allocates two buffers of 1 GiB each, or smaller ones when memory is short (then note() explains it).
  // Throws a Failure if there is too little memory. The device must outlive the meter.
  explicit CopyMeter(BenchDevice& device);

  // Times `repeat` copies with each method.
  CopySamples sample(int repeat);

  // Returns the faster method's median over both sets of samples, in 10^9 bytes per second. Read and written
  // bytes are both counted.
  [[nodiscard]] double gb_per_s(const CopySamples& before, const CopySamples& after) const;

  [[nodiscard]] std::int64_t bytes() const { return from_.size; }
  [[nodiscard]] const std::string& note() const { return note_; }

 private:
  BenchDevice& device_;
  Buffer from_, to_;
  std::string note_;
};

}  // namespace octavo::cli
