// One optimizer over one list of tensors on one device: its buffers, its bytes, and its step.
// SPDX-License-Identifier: MIT
#pragma once

#include "apps/octavo/bench/device.h"
#include "apps/octavo/bench/rows.h"

#include <octavo/grad_norm.h>
#include <octavo/optimizer.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo::cli {

// What one row of the benchmark runs.
struct RunSpec {
  GroupConfig config;  // its device is that of the Workload
  StateFormat state = StateFormat::fp32;
  DType param_dtype = DType::f32;
  DType grad_dtype = DType::f32;
  std::int64_t grad_offset = 0;  // elements from where an allocator would have put each gradient
  WeightStore store = WeightStore::nearest;
  std::int64_t block_size = 0;  // 0: the format's default
  bool guard = false;
  int threads = 1;
};

// Small tensors keep fp32 states, as format_for decides, unless `every_tensor`.
std::vector<TensorSpec> tensor_specs(const RunSpec& run, std::span<const TensorShape> shapes,
                                     bool every_tensor);

// The tensors of a workload, and the share of their rows that never have a gradient.
struct BenchTensors {
  std::vector<TensorShape> shapes;
  double zeros = 0.0;
};

// Bytes of one step, from layout(): exact sums over the tensors.
struct Footprint {
  std::int64_t numel = 0;
  std::int64_t tensors = 0;
  std::int64_t grad_bytes = 0;
  std::int64_t state_bytes = 0;  // codes and scales
  // params, states, residuals read and written; grads read (twice with the guard). An algorithm with more
  // than one pass reads all of them again in each.
  std::int64_t moved_bytes = 0;
  std::int64_t memory_bytes = 0;  // all buffers together, and what lies between them
};
Footprint footprint(const RunSpec& run, std::span<const TensorSpec> specs);

// Buffers filled with reproducible weights (zeros where the role says so) and gradients, zero states, and the
// group over them.
class Workload {
 public:
  // The device must outlive it. `specs`: one for each tensor.
  Workload(BenchDevice& device, const RunSpec& run, const BenchTensors& tensors,
           std::span<const TensorSpec> specs);

  // New gradients; a fresh Workload holds those of step 1.
  void fill_grads(std::int64_t step);
  // The share of elements whose row has a gradient now, and of those whose row has had one.
  [[nodiscard]] double touched() const { return rows_.share(touched_); }
  [[nodiscard]] double ever_touched() const { return rows_.share(ever_touched_); }
  [[nodiscard]] const GradRows& rows() const { return rows_; }
  // The next step, from 1. On a GPU it is queued.
  void step(bool guard);
  void step() { step(run_.guard); }
  // The norm of the gradients, and the next step with the guard on and clipped by it: both from one reading.
  void clip_and_step();
  // Gives the group its gradients at other addresses (256 bytes along, and back the next time), like a
  // framework that frees them between steps.
  void move_grads();
  // A Failure if the last step with the guard was skipped: the gradients are finite.
  void check_taken();

  [[nodiscard]] std::vector<GradView> grads() const;

  // Each tensor's param, residual, then codes and scales of each moment.
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
  std::vector<const void*> elsewhere_;  // where the gradients go next
  std::vector<Group> group_;            // exactly one; a Group has no default
  std::vector<NormGroup> norm_group_;   // one, once it is used
  Buffer norm_workspace_, norm_;
};

}  // namespace octavo::cli
