// Tensors divided into chunks, and chunks gathered into batches. A batch passes through device memory at
// once.
//
// A chunk begins at a complete block and knows its position in the tensor, as a shard does, so its bits equal
// those of the undivided tensor. A tensor is one chunk if its rule needs sums over the complete tensor or its
// scales belong to axes.
//
// In staging memory a batch has its states first, then gradients that come from host memory. States that are
// adjacent in host memory are one copy. Only states are copied back, because the bytes between two states may
// belong to other tensors.
// SPDX-License-Identifier: MIT
#pragma once

#include "offload/queue.h"

#include "formula/step_args.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace octavo::offload {

// A chunk's part of one of the tensor's buffers.
struct ByteRange {
  std::int64_t from = 0, bytes = 0;  // in the buffer
  std::int64_t at = 0;               // offset in the batch's staging memory
};

struct Chunk {
  std::size_t tensor = 0;
  std::int64_t begin = 0;  // in elements
  TensorSpec spec;         // of the chunk
  std::array<ByteRange, kMaxSlots> codes, scales;
  ByteRange residual, param, grad;
  bool first = true, last = true;  // chunk of its tensor

  // The number of bytes that pass through device memory if the gradient is in host memory.
  [[nodiscard]] std::int64_t bytes() const {
    std::int64_t all = residual.bytes + grad.bytes;
    for (std::size_t s = 0; s < codes.size(); ++s) all += codes[s].bytes + scales[s].bytes;
    return all;
  }
};

// Contiguous host memory that one copy moves.
struct HostRange {
  std::byte* host = nullptr;
  std::int64_t bytes = 0;
  std::int64_t at = 0;  // offset in the batch's staging memory
};

struct Batch {
  std::vector<Chunk> chunks;
  std::vector<HostRange> ranges;  // of states
  std::int64_t states_bytes = 0;  // of staging memory, alignment gaps included
  std::int64_t bytes = 0;         // the same with gradients
};

// Returns batches of at most `most` bytes, gradients included; only an indivisible tensor may exceed it.
// `order` has the numbers of the tensors. REQUIRES: checked tensors.
Result<std::vector<Batch>> make_batches(const GroupConfig& config, std::span<const TensorArgs> tensors,
                                        std::span<const std::size_t> order, std::int64_t most,
                                        DeviceQueues& queues);

// Returns the arguments of a chunk whose batch is at `base`. Its gradient is in device memory.
TensorArgs chunk_args(const TensorArgs& whole, const Chunk& chunk, std::byte* base);

}  // namespace octavo::offload
