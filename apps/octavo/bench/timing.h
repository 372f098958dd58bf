// How long things take: steps, the host's part of them, and norms.
// SPDX-License-Identifier: MIT
#pragma once

#include "bench/workload.h"

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
  std::optional<double> ms_guard;  // the median with the guard on; GPU only, as is:
  std::optional<HostTiming> host;
};

// The copy ceiling is left at 0. States are never zero: real steps come first.
Timing time_steps(BenchDevice& device, const RunSpec& run, std::span<const TensorShape> shapes, int repeat);
Timing time_norm(BenchDevice& device, const RunSpec& run, std::span<const TensorShape> shapes, int repeat);

}  // namespace octavo::cli
