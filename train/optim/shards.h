// The weights under ZeRO: every rank has all weights, in flat tensors of the layout, and steps its pieces of
// them. After the step the pieces are gathered in place, so the weights are bit-identical on all ranks.
//
// A piece is a view of the weights and a parameter of the optimizer. Every rank has a piece for each trained
// parameter, in the model's order; it is empty if the rank has no element of the parameter. Therefore
// parameters have the same numbers on all ranks, and all ranks step, count and measure the same parameters
// together.
//
// Also cuts a rank's piece out of a parameter's complete optimizer state, and gathers complete states from
// the pieces of all ranks. A piece begins at a multiple of every block, so its state is exactly a range of
// each tensor of the complete state.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/config/settings.h"
#include "train/distributed/process_group.h"
#include "train/optim/bucket_layout.h"
#include "train/optim/param_groups.h"

#include <octavo/torch/optim.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace octavo_train {

// Returns true if the optimizer states are divided among ranks (ZeRO).
[[nodiscard]] inline bool divides_states(const TrainingSettings& training) {
  return training.parallel == Parallel::zero1 || training.parallel == Parallel::zero2;
}

// Returns the layout, which is identical on all ranks. `divided`: ZeRO; each parameter whose state cannot be
// divided (4bit-rank1) is then in a bucket that a single rank owns.
BucketLayout make_bucket_layout(const ParameterGroups& groups, int ranks, bool divided,
                                std::int64_t bucket_bytes = kBucketBytes);

// Bytes of device memory that the transfer of states between ranks uses.
inline constexpr std::int64_t kSliceBytes = std::int64_t{16} << 20;

class ShardedWeights {
 public:
  // Moves the trained parameters into the flat tensors. Existing handles to the parameters see the new
  // memory. Do not give the parameters other memory afterwards. REQUIRES: a divided layout of these groups
  // and this process group, which outlives this object.
  ShardedWeights(ProcessGroup& process_group, const ParameterGroups& groups, BucketLayout layout,
                 std::int64_t slice_bytes = kSliceBytes);
  ShardedWeights(const ShardedWeights&) = delete;
  ShardedWeights& operator=(const ShardedWeights&) = delete;

  [[nodiscard]] ProcessGroup& process_group() const { return process_group_; }
  [[nodiscard]] const BucketLayout& layout() const { return layout_; }
  [[nodiscard]] std::int64_t slice_bytes() const { return slice_bytes_; }

  // Returns the tensors that this rank steps, by parameter: 1-d, elements in memory order. A parameter that
  // is not divided keeps its shape on the rank that owns it.
  [[nodiscard]] const std::vector<torch::Tensor>& pieces() const { return pieces_; }
  // Returns the range of a parameter's elements that this rank steps.
  [[nodiscard]] Piece piece(std::size_t parameter) const {
    return layout_.piece(parameter, process_group_.rank());
  }
  // Returns true if one rank owns the complete parameter.
  [[nodiscard]] bool undivided(std::size_t parameter) const;

  // Gathers the updated pieces of all ranks, in stream order (on the CPU: before it returns). Call it after
  // each step.
  void gather();

  // Returns the bytes of padding in the flat tensors.
  [[nodiscard]] std::int64_t padding_bytes() const { return padding_bytes_; }

 private:
  ProcessGroup& process_group_;
  BucketLayout layout_;
  std::int64_t slice_bytes_;
  std::vector<torch::Tensor> flats_;   // by bucket
  std::vector<torch::Tensor> chunks_;  // this rank's chunk of each
  std::vector<torch::Tensor> pieces_;
  std::int64_t padding_bytes_ = 0;
};

// Returns this rank's piece of a parameter's state, in new tensors. REQUIRES: `whole` is a complete state of
// this kind.
std::unique_ptr<octavo::torch::ParamState> cut_state(const ShardedWeights& shards, std::size_t parameter,
                                                     const octavo::torch::Kind& kind,
                                                     const octavo::torch::ParamState& whole);

// This rank's piece of a parameter's state.
struct StateShard {
  std::size_t parameter = 0;
  octavo::torch::Kind kind;  // of the complete state
  const octavo::torch::ParamState* mine = nullptr;
};

// Gathers the pieces of all ranks. REQUIRES: all ranks pass the same parameters. Rank 0 gets the complete
// states, in host memory; the others get states without tensors. A rank's bytes are sent as one stream, in
// slices of at most slice_bytes().
std::vector<octavo::torch::ParamState> gather_states(const ShardedWeights& shards,
                                                     std::span<const StateShard> pieces);

}  // namespace octavo_train
