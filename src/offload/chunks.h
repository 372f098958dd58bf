// Tensors cut into chunks that pass through device memory one by one. A chunk begins at a whole block and
// knows its place in the tensor, as a shard does, so its bits are those of the whole tensor. Tensors that are
// measured whole, or have scales of whole axes, are one chunk.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/optimizer.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo::offload {

// A part of one buffer of a tensor: bytes from its begin, and from the begin of the batch's place on the
// device.
struct ByteRange {
  std::int64_t from = 0, bytes = 0, at = 0;
};

struct Chunk {
  std::size_t tensor = 0;
  std::int64_t begin = 0;  // elements
  TensorSpec spec;         // of the chunk
  std::array<ByteRange, kMaxSlots> codes, scales;
  ByteRange residual, param, grad;
  bool first = true, last = true;  // of its tensor

  [[nodiscard]] std::int64_t bytes() const {  // that pass through the device, a held gradient among them
    std::int64_t all = residual.bytes + grad.bytes;
    for (std::size_t s = 0; s < codes.size(); ++s) all += codes[s].bytes + scales[s].bytes;
    return all;
  }
};

// Pieces of at most `most` bytes or a few more, as far as the tensor can be cut; none of an empty tensor.
// REQUIRES: a spec that was checked for the config.
Result<std::vector<Chunk>> cut_tensor(const GroupConfig& config, std::size_t tensor, const TensorSpec& spec,
                                      std::int64_t most);

}  // namespace octavo::offload
