// The weights under ZeRO: every rank has all weights, in flat tensors of the layout, and steps its pieces of
// them. After the step the pieces are gathered in place, so the weights are bit-identical on all ranks.
//
// A piece is a view of the weights and a parameter of the optimizer. Every rank has a piece for each trained
// parameter, in the model's order; it is empty if the rank has no element of the parameter. Therefore
// parameters have the same numbers on all ranks, and all ranks step, count and measure the same parameters
// together.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"
#include "train/distributed/process_group.h"
#include "train/optim/optimizer.h"
#include "train/optim/param_groups.h"
#include "train/optim/shard_layout.h"

#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace octavo_train {

// Bytes of device memory that the transfer of states between ranks uses.
inline constexpr std::int64_t kSliceBytes = std::int64_t{16} << 20;

class ShardedWeights {
 public:
  // Moves the trained parameters into the flat tensors. Existing handles to the parameters see the new
  // memory. Do not give the parameters other memory afterwards. Returns an error if the plan's optimizer
  // cannot step pieces. REQUIRES: a divided layout of these groups and this world, which outlives the result.
  static Result<std::unique_ptr<ShardedWeights>> make(ProcessGroup& world, const OptimizerChoice& plan,
                                                      const ParameterGroups& groups, ParallelLayout layout,
                                                      std::int64_t slice_bytes = kSliceBytes);
  ~ShardedWeights();
  ShardedWeights(const ShardedWeights&) = delete;
  ShardedWeights& operator=(const ShardedWeights&) = delete;

  [[nodiscard]] ProcessGroup& world() const { return world_; }
  [[nodiscard]] const ParallelLayout& layout() const { return layout_; }
  [[nodiscard]] std::int64_t slice_bytes() const { return slice_bytes_; }

  // Returns the tensors that this rank steps, by parameter: 1-d, elements in memory order. A parameter that
  // is not divided keeps its shape on the rank that owns it.
  [[nodiscard]] const std::vector<torch::Tensor>& pieces() const { return pieces_; }
  // Returns the range of a parameter's elements that this rank steps.
  [[nodiscard]] Piece piece(std::size_t parameter) const { return layout_.piece(parameter, world_.rank()); }
  // Returns true if one rank owns the complete parameter.
  [[nodiscard]] bool undivided(std::size_t parameter) const;

  // Gathers the updated pieces of all ranks, in stream order (on the CPU: before it returns). Call it after
  // each step.
  void gather();

  // Returns the bytes of padding in the flat tensors.
  [[nodiscard]] std::int64_t padding_bytes() const { return padding_bytes_; }

 private:
  ShardedWeights(ProcessGroup& world, const ParameterGroups& groups, ParallelLayout layout,
                 std::int64_t slice_bytes);

  ProcessGroup& world_;
  ParallelLayout layout_;
  std::int64_t slice_bytes_;
  std::vector<torch::Tensor> flats_;   // by bucket
  std::vector<torch::Tensor> chunks_;  // this rank's chunk of each
  std::vector<torch::Tensor> pieces_;
  std::int64_t padding_bytes_ = 0;
};

}  // namespace octavo_train
