// The states of parameters that ranks have pieces of: cut out of whole ones, and put together again. A piece
// begins at a multiple of every block, so its state is a range of each tensor of the whole's, in bits.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/parallel/sharded_weights.h"

#include <octavo/torch/optim.h>

#include <cstddef>
#include <memory>

namespace octavo::train {

// What this rank keeps of the state of a parameter, in tensors of its own. REQUIRES: `whole` is a complete
// state of that kind.
std::unique_ptr<octavo::torch::ParamState> cut_state(const ShardedWeights& shards, std::size_t parameter,
                                                     const octavo::torch::Kind& kind,
                                                     const octavo::torch::ParamState& whole);

// All ranks give their pieces: rank 0 gets the whole state, on the host; elsewhere the result has no tensors.
// At most kGatherBytes of a device's memory are used at a time.
octavo::torch::ParamState gather_state(const ShardedWeights& shards, std::size_t parameter,
                                       const octavo::torch::Kind& kind,
                                       const octavo::torch::ParamState& mine);

inline constexpr std::int64_t kGatherBytes = std::int64_t{16} << 20;

}  // namespace octavo::train
