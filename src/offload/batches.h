// Pieces gathered to batches, and a batch's place in device memory: first the states, in runs that are copied
// at once because they lie side by side in host memory; behind them gradients, for those that are held there.
// Nothing but the states themselves is written back: what lies between two of them may be somebody else's.
// SPDX-License-Identifier: MIT
#pragma once

#include "offload/pieces.h"
#include "offload/queue.h"

#include <span>
#include <vector>

namespace octavo::offload {

struct Run {
  std::byte* host = nullptr;
  std::int64_t bytes = 0;
  std::int64_t at = 0;  // in the batch's place
};

struct Batch {
  std::vector<Piece> pieces;
  std::vector<Run> runs;          // of states
  std::int64_t states_bytes = 0;  // of the place, with its gaps
  std::int64_t bytes = 0;         // with the gradients
};

// Batches of at most `most` bytes, gradients among them, as far as tensors can be cut; in the order of
// `order`, tensor numbers. REQUIRES: checked tensors.
Result<std::vector<Batch>> gather(const GroupConfig& config, std::span<const TensorArgs> tensors,
                                  std::span<const std::size_t> order, std::int64_t most,
                                  DeviceQueues& queues);

// A piece of a tensor when the place of its batch is `base`. Its gradient is that of the device.
TensorArgs args_at(const TensorArgs& whole, const Piece& piece, std::byte* base);

}  // namespace octavo::offload
