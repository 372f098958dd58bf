// A prediction of a run: memory by owner, time, and whether the run fits a GPU. predict() computes it, and a
// dry run measures it. All that print it use the same text, JSON and comparison.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/optim/optimizer.h"

#include <octavo/plan.h>

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace octavo_train {

struct Prediction {
  octavo::plan::Gpu gpu;
  std::int64_t num_gpus = 1;
  octavo::plan::MemoryUse memory;  // of training steps
  // `peak`: the most bytes that torch allocates, including evaluations. `evaluation`: bytes that evaluations
  // reserve on the device in addition to steps.
  std::int64_t peak = 0, evaluation = 0, evaluation_rows = 0;
  StepOptimizer::Bytes states;  // including those in host memory
  std::int64_t parameters = 0, trained = 0;
  std::int64_t gradient_sums = 0;  // bytes of the fp32 gradient sums that accumulation needs
  std::string batch;               // "32 clips of up to 20 s …"
  std::int64_t rows = 0, passes = 1;
  double padded_length = 0;  // of that batch; 0: all batches have the same length
  std::string unit;          // unit of throughput: "tokens"

  double matmul_flops = 0;  // of a step of one rank
  double step_seconds = 0;
  octavo::plan::StepTime compute;
  std::int64_t launches = 0;    // kernel launches of a step
  double launch_seconds = 0;    // measured host time per launch; 0: a fast host is assumed
  double update_seconds = 0;    // the optimizer's part
  double offload_seconds = 0;   // added by states in host memory
  double exposed_seconds = 0;   // communication that outlasts the backward pass
  double units_per_second = 0;  // of all GPUs
  // Seconds of a step by the operator that launches the kernels, largest first.
  std::vector<std::pair<std::string, double>> kernels;
  // If not empty, real steps with these numbers of rows were measured. Figures for
  // other numbers of rows are on the line through the measurements.
  std::vector<std::int64_t> measured_rows;
  std::string measured_on;  // the device
  bool cpu = false;         // a run on the CPU, whose allocator does not round
  std::string slow_type;    // a warning that the GPU has no tensor cores for compute_dtype; else empty

  // Returns the bytes of this owner at the peak of a step.
  [[nodiscard]] std::int64_t of(octavo::plan::Owner owner) const {
    return memory.owners[static_cast<std::size_t>(owner)];
  }
  // Returns the device memory of a process: the allocator's segments and the CUDA context.
  [[nodiscard]] std::int64_t total() const { return memory.reserved + evaluation + gpu.context; }
  [[nodiscard]] std::int64_t fragmentation() const { return memory.reserved - memory.allocated; }
  [[nodiscard]] bool fits() const { return total() <= gpu.memory; }
  [[nodiscard]] std::string bound() const;  // the limit of the speed, in words
  // Returns the host time of a step on the slowest host that predictions were compared with. `compute` has
  // the time of the measured host, or of a fast host.
  [[nodiscard]] double slow_host_seconds() const;
};

// Returns the rows of the memory table, in order. Their sum is total().
std::vector<std::pair<std::string, std::int64_t>> memory_rows(const Prediction& prediction);
std::vector<std::string> prediction_lines(const Prediction& prediction);
nlohmann::ordered_json prediction_json(const Prediction& prediction);

// Measurements of a run: the most bytes that torch allocated, and the time of a step; 0: unknown.
struct Measured {
  std::int64_t peak = 0;
  double step_seconds = 0;
  bool evaluated = true;  // the peak includes evaluations
  bool settled = true;    // the time is not that of the first steps, which are slower
  // Seconds that a step waited for its batches, which predictions do not include; nullopt: unknown.
  std::optional<double> data_waited = std::nullopt;
  // Batches of recordings differ in size. True: the largest, or the usual, measured batch was as large as the
  // predicted batch. Figures of smaller batches are not compared.
  bool largest_batch = true, usual_batch = true;
};
// Returns true if a batch of this padded length is at least nearly as large as the predicted batch.
bool is_as_large(const Prediction& prediction, double padded_length);
// Returns one line that compares the prediction with the measurements. Empty: nothing can be compared.
std::string compare_with_measured(const Prediction& prediction, const Measured& measured);
nlohmann::ordered_json comparison_json(const Prediction& prediction, const Measured& measured);

}  // namespace octavo_train
