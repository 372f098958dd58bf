// How long things take: steps, the host's part of them, and norms.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/bench/workload.h"

#include <optional>

namespace octavo::cli {

// What a call costs the calling thread when nothing waits for the device; microseconds, medians.
struct HostTiming {
  double step_us = 0.0;
  double rebind_grads_us = 0.0;  // the call that gives a group new gradients
  double rebound_step_us = 0.0;  // the step after it
};

struct Timing {
  double ms_median = 0.0;
  double ms_min = 0.0;
  double copy_gb_per_s = 0.0;      // around the same time
  std::optional<double> ms_guard;  // the median with the guard on; GPU only, as are:
  std::optional<double> ms_clip;   // the norm, and the step with the guard on and clipped by it
  std::optional<HostTiming> host;
  double touched = 1.0, ever_touched = 1.0;  // shares of the elements, by the row that they lie in
};

// How often: timed steps, and steps before them, each on gradients of its own (none: settle_steps decides).
struct Repeats {
  int timed = 1;
  std::optional<int> settle;
};

// Enough that the states are those of a run: where batches reach other rows at every step, some rows dense,
// some long decayed, some never touched.
int settle_steps(const BenchDevice& device, const GradRows& rows);

// The copy ceiling is left at 0. States are those of real steps; only rows that never had a gradient have
// zeros.
Timing time_steps(BenchDevice& device, const RunSpec& run, const BenchTensors& tensors,
                  const Repeats& repeats);
Timing time_norm(BenchDevice& device, const RunSpec& run, const BenchTensors& tensors, int repeat);

}  // namespace octavo::cli
