// One optimizer over one list of tensors on one device: its buffers, its bytes, and its step; and the norm of
// a separate set of gradients.
// SPDX-License-Identifier: MIT
#pragma once

#include "benchmarks/engine/device.h"
#include "benchmarks/engine/rows.h"

#include <octavo/grad_norm.h>
#include <octavo/optimizer.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo::cli {

// The configuration of one row of the benchmark.
struct RunSpec {
  GroupConfig config;  // the device is replaced by the Workload's
  StateFormat state = StateFormat::fp32;
  DType param_dtype = DType::f32;
  DType grad_dtype = DType::f32;
  std::int64_t grad_offset = 0;  // elements from the aligned address of each gradient
  WeightStore store = WeightStore::nearest;
  std::int64_t block_size = 0;  // 0: the format's default
  bool guard = false;
  int threads = 1;
};

// Unless `every_tensor`, small tensors keep fp32 states, as format_for decides.
std::vector<TensorSpec> tensor_specs(const RunSpec& run, std::span<const TensorShape> shapes,
                                     bool every_tensor);

// The tensors of a workload, and the share of their rows that never has a gradient.
struct BenchTensors {
  std::vector<TensorShape> shapes;
  double zeros = 0.0;
};

// The bytes of one step, computed from layout(): exact sums over the tensors.
struct Footprint {
  std::int64_t numel = 0;
  std::int64_t tensors = 0;
  std::int64_t grad_bytes = 0;
  std::int64_t state_bytes = 0;  // codes and scales
  // Params, states and residuals are read and written; grads are read (twice with the guard). An algorithm
  // that reads the tensors more than once (`passes`) reads all of them again each time.
  std::int64_t moved_bytes = 0;
  std::int64_t memory_bytes = 0;  // all buffers, including the gaps between tensors
};
Footprint footprint(const RunSpec& run, std::span<const TensorSpec> specs);

// Holds buffers with reproducible weights (zeros for LoRA's B) and gradients, zero states, and the optimizer
// group over them.
class Workload {
 public:
  // The device must outlive the workload. `specs` has one element for each tensor.
  Workload(BenchDevice& device, const RunSpec& run, const BenchTensors& tensors,
           std::span<const TensorSpec> specs);

  // Writes the gradients of `step`. A new Workload holds those of step 1.
  void fill_grads(std::int64_t step);
  // Return the share of elements whose row has a gradient now, and of those whose row has ever had one.
  [[nodiscard]] double touched() const { return rows_.share(touched_); }
  [[nodiscard]] double ever_touched() const { return rows_.share(ever_touched_); }
  [[nodiscard]] const GradRows& rows() const { return rows_; }
  // Runs the next step, counted from 1. On a GPU it is only enqueued.
  void step(bool guard);
  void step() { step(run_.guard); }
  // Computes the gradient norm and runs the next step, with the guard on and clipped by that norm.
  void clip_and_step();
  // Rebinds the group's gradients to other addresses (256 bytes further, and back at the next call), as if a
  // framework had freed them between steps.
  void move_grads();
  // Throws a Failure if the last guarded step was skipped, because the gradients are finite.
  void check_taken();

  [[nodiscard]] std::vector<GradView> grads() const;

  // The bytes of each tensor's param and residual, then of the codes and scales of each moment.
  struct Piece {
    std::string what;
    std::vector<std::byte> bytes;
  };
  [[nodiscard]] std::vector<Piece> read() const;

 private:
  StepArgs next_step();

  BenchDevice& device_;
  RunSpec run_;
  GradRows rows_;
  std::vector<std::byte> touched_, ever_touched_;  // masks of rows_
  std::int64_t steps_ = 0;
  std::vector<TensorArgs> args_;
  std::vector<TensorLayout> layouts_;
  std::vector<Buffer> buffers_;
  Buffer workspace_, report_, masks_;
  std::vector<const void*> elsewhere_;  // addresses for the next move_grads()
  std::vector<Group> group_;            // exactly one; a Group has no default
  std::vector<NormGroup> norm_group_;   // empty until first used, then exactly one
  Buffer norm_workspace_, norm_;
};

// Returns a run that allocates only parameters and gradients, in the dtypes of `run`.
RunSpec without_states(RunSpec run);

// A separate set of gradients and the NormGroup over them.
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
