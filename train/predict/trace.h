// One training step of a run on a fake device: what it allocates, in order, and which kernels it launches.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/optim/optimizer.h"
#include "train/predict/fake_device.h"
#include "train/task.h"

#include <octavo/plan.h>
#include <octavo/status.h>

#include <cstdint>
#include <string>
#include <vector>

namespace octavo::train {

struct StepTrace {
  // From an empty device to the end of the second step: states are there from the end of the first. Those
  // from `evaluation` on are a pass of an evaluation's.
  std::vector<octavo::plan::Event> events;
  std::size_t evaluation = 0;
  // Of one step; those from `backward` on are the last backward pass's, those from `update` on the
  // optimizer's. Those of the second micro-batch stand for all later ones too (Kernel::times).
  std::vector<FakeKernel> kernels;
  std::size_t backward = 0, update = 0;
  std::int64_t parameters = 0, trained = 0;
  std::int64_t rows = 0, evaluation_rows = 0;  // of a pass
  double padded_length = 0;                    // of the batch (see Batch); 0: all rows have one length
  std::int64_t units = 0;                      // of throughput, of a step of one rank
  std::int64_t passes = 1;                     // of a step
  StepOptimizer::Bytes states;
  std::int64_t gradient_bytes = 0;
  std::int64_t gradient_sums = 0;  // Gradients::sum_bytes()
  std::int64_t communication = 0;  // of ranks alone; the owner of these bytes is that of gradients
  bool on_cpu = false;             // the CPU updates states that are in host memory
};

struct TraceRequest {
  const Settings& settings;
  Task& task;         // open()
  std::int64_t rows;  // of a pass: at most as many as the settings allow
  int ranks = 1;
  const octavo::plan::Gpu& gpu;
  FakeDevice::Of device = FakeDevice::Of::gpu;
};

// Errors: settings that are no model or no optimizer; an operator that tensors without memory cannot run, by
// name.
Result<StepTrace> trace_step(const TraceRequest& request);

}  // namespace octavo::train
