// One optimizer over one list of tensors: its buffers, its bytes, its step, and the checksum of a fixed
// problem.
// SPDX-License-Identifier: MIT
#pragma once

#include "bench_memory.h"
#include "shapes.h"

#include <octavo/optimizer.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace octavo::cli {

// What one row of the benchmark runs.
struct RunSpec {
  GroupConfig config;
  StateFormat state = StateFormat::fp32;
  DType param_dtype = DType::f32;
  DType grad_dtype = DType::f32;
  WeightStore store = WeightStore::nearest;
  std::int64_t block_size = 0;  // 0: the format's default
  bool guard = false;
  int threads = 1;
};

// Small tensors keep fp32 states, as effective_format decides, unless `every_tensor`.
std::vector<TensorSpec> tensor_specs(const RunSpec& run, std::span<const TensorShape> shapes,
                                     bool every_tensor);

// Bytes of one step, from layout(): exact sums over the tensors.
struct Footprint {
  std::int64_t numel = 0;
  std::int64_t tensors = 0;
  std::int64_t state_bytes = 0;  // codes and scales
  std::int64_t moved_bytes =
      0;  // params, states, residuals read and written; grads read (twice with the guard)
  std::int64_t memory_bytes = 0;  // all buffers together
};
Footprint footprint(const RunSpec& run, std::span<const TensorSpec> specs);

// Buffers filled with reproducible weights and gradients, zero states, and the group over them.
class Workload {
 public:
  Workload(const RunSpec& run, std::span<const TensorSpec> specs);

  // New gradients; a fresh Workload holds those of step 1.
  void fill_grads(std::int64_t step);
  void step(std::int64_t step);
  // FNV-1a over each tensor's param, residual, then codes and scales of each moment.
  [[nodiscard]] std::uint64_t hash() const;

 private:
  void for_elements(
      const std::function<void(std::size_t tensor, std::int64_t begin, std::int64_t end)>& work) const;

  RunSpec run_;
  std::vector<TensorArgs> args_;
  std::vector<TensorLayout> layouts_;
  std::vector<PageBuffer> buffers_;
  PageBuffer workspace_;
  std::vector<Group> group_;  // exactly one; a Group has no default
};

// The hash, in hex, after three steps on a fixed list of tensors: sizes 1, 31, 255, 256, 257, 4095, 4097,
// 100003 in one dimension, and 64x96, 1024x1x9, 16x3x5x7; all in the format asked for. It depends on
// optimizer, format, dtypes, store and block size alone: not on the implementation, threads, guard, or what
// is timed.
std::string checksum(const RunSpec& run);

}  // namespace octavo::cli
