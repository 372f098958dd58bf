// What a run will need on a GPU, before its first step: memory by owner, time, and whether it fits. The data
// is opened, because its largest batch decides; the model runs once on tensors without memory (trace.h).
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/config.h"
#include "train/predict/trace.h"

#include <octavo/plan.h>
#include <octavo/status.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace octavo::train {

struct PlanRequest {
  octavo::plan::Gpu gpu;
  bool cpu = false;  // the run is on the CPU: memory alone is planned, no time, and `gpu` is not asked
  std::int64_t num_gpus = 1;
  std::int64_t gpus_per_host = 8;
  double network = 50e9;      // bytes a second of one GPU, each way, to other hosts
  double launch_seconds = 0;  // of the host for a kernel, from measure_launch(); 0: a fast host is assumed
};

struct Plan {
  octavo::plan::Gpu gpu;
  std::int64_t num_gpus = 1;
  octavo::plan::MemoryUse memory;  // of steps
  // The most that torch allocates, evaluations included, and what those take from the device besides.
  std::int64_t peak = 0, evaluation = 0, evaluation_rows = 0;
  StepOptimizer::Bytes states;  // those in host memory too
  std::int64_t parameters = 0, trained = 0;
  std::int64_t gradient_sums = 0;  // bytes of the fp32 sums of gradients, which accumulation needs
  std::string batch;               // "32 clips of up to 20 s …"
  std::int64_t rows = 0, passes = 1;
  double padded_length = 0;  // of that batch; 0: all batches have the same
  std::string unit;          // of throughput: "tokens"

  double matmul_flops = 0;  // of a step of one rank
  double step_seconds = 0;
  octavo::plan::StepTime compute;
  std::int64_t launches = 0;    // of kernels, by the host
  double launch_seconds = 0;    // of the host for each, as it was measured; 0: a fast host is assumed
  double update_seconds = 0;    // the optimizer's part
  double offload_seconds = 0;   // what states in host memory add
  double exposed_seconds = 0;   // communication that outlasts the backward pass
  double units_per_second = 0;  // of all GPUs
  // Seconds of a step by what launches the kernels, the most first.
  std::vector<std::pair<std::string, double>> kernels;
  // Not planned, but measured with so many rows (train/run/measured_plan.h); the rest is on the line through
  // them.
  std::vector<std::int64_t> measured_rows;
  std::string measured_on;  // the device
  bool cpu = false;         // of a run on the CPU, whose allocator rounds nothing
  std::string slow_type;    // a warning that the GPU has no tensor cores for compute_dtype; else empty

  // What a process takes of the device: the allocator's segments, and CUDA's own.
  [[nodiscard]] std::int64_t total() const { return memory.reserved + evaluation + gpu.context; }
  [[nodiscard]] std::int64_t fragmentation() const { return memory.reserved - memory.allocated; }
  [[nodiscard]] bool fits() const { return total() <= gpu.memory; }
  [[nodiscard]] std::string bound() const;  // in words
  // The host's part where it is as slow as the slowest that plans were held against. `compute` has that of
  // the host that was measured, or of a fast one.
  [[nodiscard]] double slow_host_seconds() const;
};

// Errors are those of a run (bad data, settings that are no model, a batch that ranks cannot divide), and of
// trace_step().
Result<Plan> make_plan(const Settings& given, const PlanRequest& request);
// The same of a task whose data is open, and of settings whose passes are those of a rank. It builds a model
// of its own, which the task has afterwards.
Result<Plan> make_plan(const Settings& settings, Task& task, const PlanRequest& request);
// Makes the plan of a config's settings with a task whose data is open.
Result<Plan> make_plan_of_open(const Settings& given, Task& task, const PlanRequest& request);

// The rows of its table of memory, in their order.
std::vector<std::pair<std::string, std::int64_t>> memory_rows(const Plan& plan);
// For people, a line each.
std::vector<std::string> plan_lines(const Plan& plan);
nlohmann::ordered_json plan_json(const Plan& plan);

// What a run has found: the most that torch allocated, and the time of a step; 0: not known.
struct Measured {
  std::int64_t peak = 0;
  double step_seconds = 0;
  bool evaluated = true;  // the peak is that of evaluations, too
  bool settled = true;    // the time is not that of the first steps
  // What a step waited until its batches were read, which plans leave out; none: not known.
  std::optional<double> data_waited = std::nullopt;
  // Batches of recordings differ in size. True: the largest measured one, or the usual one, was as large as
  // the plan's. Figures of smaller batches are not compared.
  bool largest_batch = true, usual_batch = true;
};
// True if a batch of that padded length is as large as the plan's, or nearly so.
bool is_as_large(const Plan& plan, double padded_length);
// One line: the plan and what was measured. Empty: nothing can be compared.
std::string plan_against(const Plan& plan, const Measured& measured);
nlohmann::ordered_json pair_json(const Plan& plan, const Measured& measured);

}  // namespace octavo::train
