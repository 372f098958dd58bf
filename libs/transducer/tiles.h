// Divides the cells of a batch into tiles: runs of complete frames, of one clip or of several, in the order
// in which cells are packed. With the logits of one tile at a time, longer clips need no more memory.
// SPDX-License-Identifier: MIT
#pragma once

#include "transducer/lattice.h"

#include <algorithm>

namespace octavo::transducer {

struct Tile {
  std::int64_t first;        // its first cell
  std::int64_t cells;        // the number of cells
  std::int64_t clip, frame;  // its beginning
};

// Returns the maximum of cells in a tile of about `wanted`: a frame is never divided.
inline std::int64_t tile_capacity(const TransducerArgs& args, std::int64_t wanted) {
  std::int64_t most = wanted;
  for (std::int64_t b = 0; b < args.batch; ++b) most = std::max(most, args.target_lengths[b] + 1);
  return std::min(most, all_cells(args));
}

// Calls f(tile) for every tile. REQUIRES: lengths in host memory.
template <class Fn>
void for_tiles(const TransducerArgs& args, std::int64_t wanted, Fn&& f) {
  Tile tile{};
  for (std::int64_t b = 0; b < args.batch; ++b) {
    const std::int64_t row = args.target_lengths[b] + 1, frames = args.logit_lengths[b];
    for (std::int64_t t = 0; t < frames;) {
      if (tile.cells > 0 && row > wanted - tile.cells) {  // the tile is full
        f(tile);
        tile = {tile.first + tile.cells, 0, b, t};
      }
      if (tile.cells == 0) tile = {tile.first, 0, b, t};
      const std::int64_t more = std::clamp<std::int64_t>((wanted - tile.cells) / row, 1, frames - t);
      tile.cells += more * row;
      t += more;
    }
  }
  if (tile.cells > 0) f(tile);
}

}  // namespace octavo::transducer
