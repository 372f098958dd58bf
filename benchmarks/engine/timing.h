// Times steps, the host's part of them, and norms.
// SPDX-License-Identifier: MIT
#pragma once

#include "benchmarks/engine/workload.h"

#include <optional>

namespace octavo::cli {

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
