// The benchmark of the gradient norm: a separate set of gradients and the NormGroup over them.
// SPDX-License-Identifier: MIT
#pragma once

#include "benchmarks/engine/workload.h"

#include <vector>

namespace octavo::cli {

// Returns a run that allocates only parameters and gradients, in the dtypes of `run`.
RunSpec without_states(RunSpec run);

class NormWorkload {
 public:
  NormWorkload(BenchDevice& device, const RunSpec& run, const BenchTensors& tensors);

  // Computes the norm once. On a GPU the work is only enqueued.
  void step();
  // Computes the norm and waits for it.
  GradNorm result();

 private:
  BenchDevice& device_;
  int threads_;
  Workload tensors_;
  Buffer workspace_, out_;
  std::vector<NormGroup> group_;  // exactly one; a NormGroup has no default
};

}  // namespace octavo::cli
