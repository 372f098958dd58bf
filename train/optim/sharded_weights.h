// ZeRO's weights: every rank has all of them, in flat tensors as the layout says, and steps its pieces of
// them. After the step the pieces are gathered in place, so the weights are equal in bits on all ranks.
//
// A piece is a view of the weights and a parameter of the optimizer. There is one for each trained parameter,
// in the model's order, on every rank, empty where the rank has nothing of it: so the parameters have the
// same numbers on all ranks, and ranks step, count and measure the same ones together.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/distributed/world.h"
#include "train/optim/optimizer.h"
#include "train/optim/param_groups.h"
#include "train/optim/shard_layout.h"

#include <octavo/status.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace octavo::train {

// Of a device's memory that handing states over takes.
inline constexpr std::int64_t kSliceBytes = std::int64_t{16} << 20;

class ShardedWeights {
 public:
  // Moves the trained parameters into the flat tensors; who holds them sees them there. Where they lie is
  // theirs for good: give them no other memory afterwards. An error where the plan's optimizer cannot step
  // pieces. REQUIRES: a divided layout of these groups and this world, which outlives the result.
  static Result<std::unique_ptr<ShardedWeights>> make(World& world, const OptimizerPlan& plan,
                                                      const ParameterGroups& groups, ParallelLayout layout,
                                                      std::int64_t slice_bytes = kSliceBytes);
  ~ShardedWeights();
  ShardedWeights(const ShardedWeights&) = delete;
  ShardedWeights& operator=(const ShardedWeights&) = delete;

  [[nodiscard]] World& world() const { return world_; }
  [[nodiscard]] const ParallelLayout& layout() const { return layout_; }
  [[nodiscard]] std::int64_t slice_bytes() const { return slice_bytes_; }

  // What this rank steps, by parameter: elements in memory order, of one dimension. A parameter that is not
  // divided has its own shape on the rank that has it.
  [[nodiscard]] const std::vector<torch::Tensor>& pieces() const { return pieces_; }
  // Which elements those are.
  [[nodiscard]] Piece piece(std::size_t parameter) const { return layout_.piece(parameter, world_.rank()); }
  // Whether one rank has all of it.
  [[nodiscard]] bool undivided(std::size_t parameter) const;

  // After each step: the weights are whole again, in stream order (on the CPU: on return).
  void gather();

  // Of the flat tensors beyond the parameters: padding.
  [[nodiscard]] std::int64_t padding_bytes() const { return padding_bytes_; }

 private:
  ShardedWeights(World& world, const ParameterGroups& groups, ParallelLayout layout,
                 std::int64_t slice_bytes);

  World& world_;
  ParallelLayout layout_;
  std::int64_t slice_bytes_;
  std::vector<torch::Tensor> flats_;   // by bucket
  std::vector<torch::Tensor> chunks_;  // this rank's of each
  std::vector<torch::Tensor> pieces_;
  std::int64_t padding_bytes_ = 0;
};

}  // namespace octavo::train
