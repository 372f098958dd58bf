// Pieces gathered to batches, and a batch's place in device memory: first the states, in ranges that are
// copied at once because they lie side by side in host memory; behind them gradients, for those that are held
// there. Nothing but the states themselves is written back: what lies between two of them may be somebody
// else's.
// SPDX-License-Identifier: MIT
#pragma once

#include "offload/chunks.h"
#include "offload/queue.h"

#include <span>
#include <vector>

namespace octavo::offload {

struct HostRange {
  std::byte* host = nullptr;
  std::int64_t bytes = 0;
  std::int64_t at = 0;  // in the batch's place
};

struct Batch {
  std::vector<Chunk> chunks;
  std::vector<HostRange> ranges;  // of states
  std::int64_t states_bytes = 0;  // of the place, with its gaps
  std::int64_t bytes = 0;         // with the gradients
};

// Batches of at most `most` bytes, gradients among them, as far as tensors can be cut; in the order of
// `order`, tensor numbers. REQUIRES: checked tensors.
Result<std::vector<Batch>> make_batches(const GroupConfig& config, std::span<const TensorArgs> tensors,
                                        std::span<const std::size_t> order, std::int64_t most,
                                        DeviceQueues& queues);

// A chunk of a tensor when the place of its batch is `base`. Its gradient is that of the device.
TensorArgs chunk_args(const TensorArgs& whole, const Chunk& chunk, std::byte* base);

}  // namespace octavo::offload
