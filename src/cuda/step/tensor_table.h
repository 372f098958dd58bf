// What host and device share: the table of tensors that a launch walks, and the constants of a step.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/runtime/arch.h"
#include "formula/decide.h"
#include "formula/trust_ratio.h"

#include <octavo/optimizer.h>

#include <cstdint>

namespace octavo::cuda {

// Elements a warp works on at a time: sixteen a lane, in two chunks.
inline constexpr int kTile = 2 * kChunk * 32;
// Tiles of a tensor that 32 bits can address in groups of four elements.
inline constexpr std::int64_t kMaxQuickUnits = (std::int64_t{1} << 34) / kTile;
// The tensor of every kMapStep-th tile is looked up; from there a warp walks to its own.
inline constexpr int kMapStep = 8;

// A tensor with axis scales as a matrix: some leading axes folded into rows, the others into columns, so that
// an element has two maxima whatever the number of axes (cuda/rank1/matrix_view.h chooses where to fold). A
// panel is what a warp takes at a time: up to 32 rows of a strip, in which some lanes share a row, eight
// columns each. Panels are counted over all tensors of a launch, strips first.
struct Rank1View {
  float*
      folded;  // for each moment with axis scales: old rows, old columns, new rows, new columns (workspace)
  std::int64_t rows, columns;
  std::uint32_t first_panel;
  std::uint32_t strips;
  std::uint32_t magic;  // and shifts: a chunk's number over the chunks of a row
  std::uint32_t apart;  // chunks from a lane's row to its next
  std::uint8_t shift[2];
  std::uint8_t leading;    // axes that are rows
  std::uint8_t lane_bits;  // 2^lane_bits lanes share a row
  std::uint8_t quick;      // its panels go by vectors
  std::uint8_t unused[3];
};

// The slots of a group whose moments have axis scales.
struct Rank1Slots {
  std::int32_t count = 0;
  std::int32_t slot[kMaxSlots] = {};
};

// One tensor. A unit is a tile, or a block where that is larger; units are counted over all tensors of a
// launch. Neighbouring pointers are loaded in pairs (PointerPair).
struct alignas(16) TensorEntry {
  void* param;
  const void* grad;
  void* codes[kMaxSlots];
  void* residual;
  float* scales[kMaxSlots];
  float* new_scales;  // axis scales: the maxima of the new moments, in the workspace
  std::int64_t numel;
  std::int64_t offset;  // of its first element in the whole parameter
  std::uint64_t id;
  std::uint32_t first_unit;
  std::uint32_t quick_units;  // from the first on: those that vectors can do
  std::int32_t block;         // elements; 0 without blocks
  std::uint8_t param_dtype, grad_dtype;
  std::uint8_t plain;        // fp32 states beside a launch's own format
  std::uint8_t aligned;      // the gradient, to 16 bytes
  std::uint8_t lanes_log2;   // of the number of lanes that share a block, of its first tile if it is larger
  std::uint8_t quick_large;  // its units are, which are blocks above a tile
  std::uint8_t quick_end;    // and so is what follows whole tiles
  std::uint8_t usual;  // default blocks, and weights and gradients both bf16 or, with fp32 weights, both fp32
  std::int32_t ndim;
  std::uint32_t first_tile;      // among the sums of tiles, where the rule measures
  float ratio;                   // of this step, likewise; written on the device
  std::uint32_t tensor;          // its number in the group
  std::int64_t shape[kMaxDims];  // axis scales
  Rank1View rank1;
};
static_assert(sizeof(TensorEntry) % 16 == 0);

// Sums of tiles that are added first, and how many such nodes a tensor has.
inline constexpr int kTilesOfNode = 32;
OCTAVO_HD inline std::int64_t nodes_of(std::int64_t numel) {
  return (numel + kTilesOfNode * kTile - 1) / (kTilesOfNode * kTile);
}

// Units of one launch: 2^40 elements, more than any device holds.
inline constexpr std::int64_t kMaxUnits = std::int64_t{1} << 31;

// The constants of a step, written by the host or, where a scalar lives on the device, by a kernel before it.
struct alignas(16) Prepared {
  std::byte consts[64];      // the algorithm's Consts
  std::uint64_t round_base;  // of stochastic rounding: seed and step
  std::uint32_t skip;        // nothing is written
  std::uint32_t in_range;    // the constants allow the lane without branches
  float least_result;        // for which it is exact (lane/exact.h); 0 where nothing is divided
};

struct StepParams {
  const TensorEntry* tensors;
  const std::uint32_t* map;
  std::uint32_t* counters;   // two zeros: units taken, warps done; zeros again when the launch ends
  const Prepared* prepared;  // null: `constants`
  std::uint32_t units;       // or panels
  std::uint32_t grouped;     // units, from the first on, that warps take several at a time
  formula::Sums* sums;       // of tiles, where the rule measures
  Prepared constants;
};

}  // namespace octavo::cuda
