// The layout of the scales of a matrix of codes.
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/fp8.h>

#include <cstdint>

namespace octavo::fp8 {

inline constexpr std::int64_t kTile = 128;  // a side of the tiles that share a scale

constexpr std::int64_t tiles_in(std::int64_t size) { return (size + kTile - 1) / kTile; }
constexpr std::int64_t to_four(std::int64_t size) { return (size + 3) / 4 * 4; }

// A tile has `tall` rows of `wide` elements. `down` is the distance to the scale of the tile below, and
// `across` to that of the next tile in the row.
struct ScaleMap {
  std::int64_t tall, wide, down, across;
  std::int64_t count;

  [[nodiscard]] std::int64_t place(std::int64_t i, std::int64_t k) const {
    return i / tall * down + k / wide * across;
  }
};

inline ScaleMap scale_map(Tiling tiling, std::int64_t rows, std::int64_t inner) {
  const std::int64_t lines = tiles_in(inner);
  switch (tiling) {
    case Tiling::row:
      return {1, 1, 1, 0, rows};
    case Tiling::tile_1x128:
      return {1, kTile, 1, to_four(rows), lines * to_four(rows)};
    case Tiling::tile_128x128:
      return {kTile, kTile, to_four(lines), 1, tiles_in(rows) * to_four(lines)};
    case Tiling::tensor:
      break;
  }
  return {1, 1, 0, 0, 1};
}

// Returns the scales of `groups` matrices with `count` each; all groups share a tensor's scale.
constexpr std::int64_t group_scales(Tiling tiling, std::int64_t count, std::int64_t groups) {
  return tiling == Tiling::tensor ? count : groups * count;
}

}  // namespace octavo::fp8
