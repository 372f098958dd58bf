// Times steps, the host's part of them, norms, and copies of the device's own memory: the ceiling that
// benchmarks compare with. The speed of shared machines changes from minute to minute, so copies are timed
// right before and right after each measurement.
// SPDX-License-Identifier: MIT
#pragma once

#include "benchmarks/engine/device.h"
#include "benchmarks/engine/workload.h"

#include <cstdint>
#include <optional>
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

// The host time of a call while no call waits for the device; medians in microseconds.
struct HostTiming {
  double step_us = 0.0;
  double rebind_grads_us = 0.0;  // rebind_grads: gives a group new gradient addresses
  double rebound_step_us = 0.0;  // the step after rebind_grads
};

struct Timing {
  double ms_median = 0.0;
  double ms_min = 0.0;
  double copy_gb_per_s = 0.0;      // measured around the same time
  std::optional<double> ms_guard;  // median with the guard on; GPU only, like the next two
  std::optional<double> ms_clip;   // the norm plus the step with the guard on, clipped by that norm
  std::optional<HostTiming> host;
  // Shares of elements in rows that the timed step, or any step so far, touched.
  double touched = 1.0, ever_touched = 1.0;
};

// The number of timed steps, and of steps before them, each with new gradients (empty: settle_steps decides).
struct Repeats {
  int timed = 1;
  std::optional<int> settle;
};

// Returns enough steps for the states to resemble those of a real run. If batches touch different rows at
// every step, some rows are then dense, some are long decayed, and some were never touched.
int settle_steps(const BenchDevice& device, const GradRows& rows);

// Leaves copy_gb_per_s at 0. The states are those of real steps; only rows that never had a gradient are
// zero.
Timing time_steps(BenchDevice& device, const RunSpec& run, const BenchTensors& tensors,
                  const Repeats& repeats);
Timing time_norm(BenchDevice& device, const RunSpec& run, const BenchTensors& tensors, int repeat);

}  // namespace octavo::cli
