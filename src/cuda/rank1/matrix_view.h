// Decides on the host how a tensor with rank-1 scales is folded into rows and columns
// (cuda/step/tensor_table.h, Rank1View).
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/step/tensor_table.h"

#include <algorithm>
#include <span>

namespace octavo::cuda {

// The number of rows that a warp processes at a time, and of rows of a panel. A panel has enough rows that
// its columns' maxima, which are in registers, cost little, and at most one row per lane. Both are powers of
// two.
OCTAVO_HD constexpr int rows_abreast(int lane_bits) { return 32 >> lane_bits; }
OCTAVO_HD constexpr int panel_rows(int lane_bits) { return lane_bits == 5 ? 16 : 32; }

// The sizes in floats of the parts of Rank1View::folded. Each part begins at a multiple of four.
OCTAVO_HD constexpr std::int64_t whole_quads(std::int64_t count) { return (count + 3) / 4 * 4; }
OCTAVO_HD constexpr std::int64_t folded_floats(const Rank1View& view) {  // for one moment
  return 2 * (whole_quads(view.rows) + whole_quads(view.columns));
}

OCTAVO_HD constexpr std::int64_t panels_of(const Rank1View& view) {
  return (view.rows + panel_rows(view.lane_bits) - 1) / panel_rows(view.lane_bits) * view.strips;
}

// Prepares the division of any 32-bit number by a known one (Granlund & Montgomery 1994).
constexpr void set_divisor(Rank1View& view, std::uint32_t divisor) {
  int bits = 0;
  while ((std::uint64_t{1} << bits) < divisor) ++bits;
  const std::uint64_t missing = (std::uint64_t{1} << bits) - divisor;
  view.magic = static_cast<std::uint32_t>((missing << 32) / divisor + 1);
  view.shift[0] = static_cast<std::uint8_t>(bits < 1 ? bits : 1);
  view.shift[1] = static_cast<std::uint8_t>(bits > 1 ? bits - 1 : 0);
}
constexpr std::uint32_t over_divisor(const Rank1View& view, std::uint32_t high_product,
                                     std::uint32_t number) {
  return (high_product + ((number - high_product) >> view.shift[0])) >> view.shift[1];
}

// Returns how many lanes share a row if a warp can process complete blocks of each row, of 256 or 128
// elements; otherwise -1.
constexpr int lane_bits_of_blocks(std::int64_t columns, std::int64_t block) {
  if (columns >= std::int64_t{1} << 25) return -1;  // the distance between rows must fit 32 bits
  if (columns % 256 == 0 && block <= 256) return 5;
  return columns % 128 == 0 && block <= 128 ? 4 : -1;
}

// Folds `shape` before axis `leading`.
inline Rank1View fold_at(std::span<const std::int64_t> shape, int leading, std::int64_t block) {
  Rank1View view{};
  view.rows = view.columns = 1;
  for (std::size_t axis = 0; axis < shape.size(); ++axis)
    (static_cast<int>(axis) < leading ? view.rows : view.columns) *= shape[axis];
  view.leading = static_cast<std::uint8_t>(leading);
  int bits = lane_bits_of_blocks(view.columns, block);
  if (bits < 0)
    for (bits = 0; bits < 5 && (kChunk << bits) < view.columns;) ++bits;
  view.lane_bits = static_cast<std::uint8_t>(bits);
  view.apart = static_cast<std::uint32_t>(view.columns / kChunk * rows_abreast(bits));
  view.strips = static_cast<std::uint32_t>((view.columns + (kChunk << bits) - 1) / (kChunk << bits));
  if (view.columns % kChunk == 0) set_divisor(view, static_cast<std::uint32_t>(view.columns / kChunk));
  return view;
}

// Returns true if the step can use panels: complete blocks, and 32 bits for chunks and rows.
inline bool uses_panels(const Rank1View& view, std::int64_t block) {
  return lane_bits_of_blocks(view.columns, block) >= 0 && view.rows < std::int64_t{1} << 31 &&
         view.columns / kChunk * view.rows <= 0xFFFFFFFFLL;
}

// Estimates the instructions per element of the view: those of both passes, and those of the maxima, which
// are read and raised once for each column and row of a panel.
inline double cost_of(const Rank1View& view, std::int64_t block) {
  constexpr double kBlocks = 100.0, kVectors = 160.0, kSingle = 1000.0, kMaximum = 200.0;
  const double rows = static_cast<double>(std::min<std::int64_t>(view.rows, panel_rows(view.lane_bits)));
  const double columns = static_cast<double>(std::min<std::int64_t>(view.columns, kChunk << view.lane_bits));
  const double element = lane_bits_of_blocks(view.columns, block) >= 0 ? kBlocks
                         : view.columns % kChunk == 0                  ? kVectors
                                                                       : kSingle;
  return element + kMaximum / rows + kMaximum / columns;
}

// Returns the cheapest view whose folded maxima are small compared with the tensor. If there is none, returns
// the view with the smallest ones. REQUIRES: no axis is empty.
inline Rank1View view_of(std::span<const std::int64_t> shape, std::int64_t block) {
  constexpr std::int64_t kFew = 1 << 17;
  Rank1View best = fold_at(shape, 0, block);
  const auto size = [](const Rank1View& view) { return view.rows + view.columns; };
  for (int leading = 1; leading < static_cast<int>(shape.size()); ++leading) {
    const Rank1View view = fold_at(shape, leading, block);
    const std::int64_t most = view.rows * view.columns / 64 + kFew;
    const bool small = size(view) <= most;
    const bool best_small = size(best) <= most;
    const bool better = small && best_small   ? cost_of(view, block) < cost_of(best, block)
                        : small != best_small ? small
                                              : size(view) < size(best);
    if (better) best = view;
  }
  return best;
}

}  // namespace octavo::cuda
