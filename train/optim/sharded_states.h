// The states of parameters that ranks have pieces of: cut out of whole ones, and put together again. A piece
// begins at a multiple of every block, so its state is a range of each tensor of the whole's, in bits.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/optim/sharded_weights.h"

#include <octavo/torch/optim.h>

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

namespace octavo::train {

// What this rank keeps of the state of a parameter, in tensors of its own. REQUIRES: `whole` is a complete
// state of that kind.
std::unique_ptr<octavo::torch::ParamState> cut_state(const ShardedWeights& shards, std::size_t parameter,
                                                     const octavo::torch::Kind& kind,
                                                     const octavo::torch::ParamState& whole);

// The state of a parameter, as this rank has it.
struct PieceOfState {
  std::size_t parameter = 0;
  octavo::torch::Kind kind;  // of the whole
  const octavo::torch::ParamState* mine = nullptr;
};

// All ranks give what they have of the same parameters: rank 0 gets the whole states, on the host; the others
// get states without tensors. The bytes of a rank go as one stream, in slices of slice_bytes() at most.
std::vector<octavo::torch::ParamState> gather_states(const ShardedWeights& shards,
                                                     std::span<const PieceOfState> pieces);

}  // namespace octavo::train
