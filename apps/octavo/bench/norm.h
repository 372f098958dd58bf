// The norm of a list of gradients, as the benchmark runs it: gradients of its own and the NormGroup over
// them.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/bench/workload.h"

#include <vector>

namespace octavo::cli {

// The run whose buffers are parameters and gradients alone, in the dtypes of `run`.
RunSpec without_states(RunSpec run);

class NormWorkload {
 public:
  NormWorkload(BenchDevice& device, const RunSpec& run, const BenchTensors& tensors);

  // On a GPU it is queued.
  void step();
  // Runs it and waits.
  GradNorm result();

 private:
  BenchDevice& device_;
  int threads_;
  Workload tensors_;
  Buffer workspace_, out_;
  std::vector<NormGroup> group_;  // exactly one; a NormGroup has no default
};

}  // namespace octavo::cli
