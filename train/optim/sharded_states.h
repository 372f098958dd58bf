// Cuts a rank's piece out of a parameter's complete optimizer state, and gathers complete states from the
// pieces of all ranks. A piece begins at a multiple of every block, so its state is exactly a range of each
// tensor of the complete state.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/optim/sharded_weights.h"

#include <octavo/torch/optim.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace octavo_train {

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
