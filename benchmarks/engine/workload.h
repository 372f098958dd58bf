// One optimizer over one list of tensors on one device: its buffers, its bytes, and its step; and the norm of
// a separate set of gradients.
// SPDX-License-Identifier: MIT
#pragma once

#include "benchmarks/engine/device.h"
#include "benchmarks/engine/rows.h"

#include <octavo/layout.h>
#include <octavo/engine.hpp>

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

// Holds buffers with reproducible weights (zeros for LoRA's B) and gradients, zero states, and an engine over
// them.
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
  // Computes the gradient norm. On a GPU it is only enqueued.
  void take_norm();
  // Begins a step with gradients at other addresses (256 bytes further, and back at the next call), as if a
  // framework had freed them between steps.
  void move_grads();
  // Throws a Failure if the last guarded step was skipped, because the gradients are finite.
  void check_taken();

  // Returns the norm of the last step with a norm, or of take_norm(). Waits for it.
  [[nodiscard]] octavo_device_norm norm();

  // The bytes of each tensor's param and residual, then of the codes and scales of each moment.
  struct Piece {
    std::string what;
    std::vector<std::byte> bytes;
  };
  [[nodiscard]] std::vector<Piece> read() const;

 private:
  void set_options(double clip_grad_norm);
  void place_counts(bool on_device);
  void begin(bool with_norm);
  octavo_engine_device here(bool guard) const;
  void run(bool guard);

  BenchDevice& device_;
  RunSpec run_;
  GradRows rows_;
  std::vector<std::byte> touched_, ever_touched_;  // masks of rows_
  std::int64_t steps_ = 0;
  double max_norm_ = -1.0;  // of the engine's options
  std::vector<TensorSpec> specs_;
  std::vector<TensorLayout> layouts_;
  std::vector<Buffer> buffers_;
  Buffer workspace_, report_, norm_, device_counts_, masks_;
  Engine engine_;
  std::vector<std::uint32_t> handles_;
  std::vector<octavo_engine_tensor> tensors_;
  std::vector<const void*> grads_;
  std::vector<const void*> elsewhere_;  // addresses for the next move_grads()
  std::vector<std::uint8_t> dtypes_;
  std::vector<std::int64_t> counts_;
};

// Returns a run that allocates only parameters and gradients, in the dtypes of `run`.
RunSpec without_states(RunSpec run);

// A separate set of gradients and their norm.
class NormWorkload {
 public:
  NormWorkload(BenchDevice& device, const RunSpec& run, const BenchTensors& tensors);

  // Computes the norm once. On a GPU the work is only enqueued.
  void step() { tensors_.take_norm(); }
  // Computes the norm and waits for it.
  octavo_device_norm result();

 private:
  Workload tensors_;
};

}  // namespace octavo::cli
