// Tensors cut into pieces that pass through device memory one by one. A piece begins at a whole block and
// knows its place in the tensor, as a shard does, so its bits are those of the whole tensor. Tensors that are
// measured whole, or have scales of whole axes, are one piece.
// SPDX-License-Identifier: MIT
#pragma once

#include "formula/step_args.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo::offload {

// A part of one buffer of a tensor: bytes from its begin, and from the begin of the batch's place on the
// device.
struct Part {
  std::int64_t from = 0, bytes = 0, at = 0;
};

struct Piece {
  std::size_t tensor = 0;
  std::int64_t begin = 0;  // elements
  TensorSpec spec;         // of the piece
  std::array<Part, kMaxSlots> codes, scales;
  Part residual, param, grad;
  bool first = true, last = true;  // of its tensor

  [[nodiscard]] std::int64_t bytes() const {  // that pass through the device, a held gradient among them
    std::int64_t all = residual.bytes + grad.bytes;
    for (std::size_t s = 0; s < codes.size(); ++s) all += codes[s].bytes + scales[s].bytes;
    return all;
  }
};

// Pieces of at most `most` bytes or a few more, as far as the tensor can be cut; none of an empty tensor.
// REQUIRES: a spec that was checked for the config.
Result<std::vector<Piece>> cut(const GroupConfig& config, std::size_t tensor, const TensorSpec& spec,
                               std::int64_t most);

}  // namespace octavo::offload
