// Traces a training step of a run on a fake device: its allocations in order, and the kernels that it
// launches.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/config/settings.h"
#include "train/optim/optimizer.h"
#include "train/predict/trace_device.h"
#include "train/task.h"

#include <octavo/plan.h>

#include <cstdint>
#include <string>
#include <vector>

namespace octavo_train {

struct StepTrace {
  // Allocations and deallocations from an empty device to the end of the second step. The first step creates
  // the optimizer states at its end. Events from `evaluation` on belong to one batch of an evaluation.
  std::vector<octavo::plan::Event> events;
  std::size_t evaluation = 0;
  // Kernels of one step. Those from `backward` on belong to the last backward pass, those from `update` on to
  // the optimizer. Kernels of the second micro-batch represent all later micro-batches too (Kernel::times).
  std::vector<FakeKernel> kernels;
  std::size_t backward = 0, update = 0;
  std::int64_t parameters = 0, trained = 0;
  std::int64_t rows = 0, evaluation_rows = 0;  // of a micro-batch; of an evaluation batch
  double padded_length = 0;                    // of the batch (see Batch); 0: all rows have one length
  std::int64_t units = 0;                      // units of throughput in a step of one rank
  std::int64_t passes = 1;                     // micro-batches of a step
  StepOptimizer::Bytes states;
  std::int64_t gradient_bytes = 0;
  std::int64_t gradient_sums = 0;  // Gradients::sum_bytes()
  std::int64_t communication = 0;  // buffers for communication; their events have the owner `gradients`
  bool on_cpu = false;             // the CPU updates the states in host memory
};

struct TraceRequest {
  const Settings& settings;
  const OpenTask& task;
  std::int64_t rows;  // of a micro-batch, at most the number that the settings allow
  int ranks = 1;
  const octavo::plan::Gpu& gpu;
  TraceDevice::Of device = TraceDevice::Of::gpu;
};

// Traces a step. Returns an error for settings that are not a valid model or optimizer, and for an operator
// that tensors without memory cannot run, with its name.
Result<StepTrace> trace_step(const TraceRequest& request);

}  // namespace octavo_train
