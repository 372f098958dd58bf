// The data that host and device share: the table of tensors of a launch, and the constants of a step.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/runtime/arch.h"
#include "formula/decide.h"
#include "formula/trust_ratio.h"

#include <octavo/types.h>

#include <cstdint>

namespace octavo::cuda {

// The elements that a warp processes at a time: sixteen per lane, in two chunks.
inline constexpr int kTile = 2 * kChunk * 32;
// The number of a tensor's tiles that 32 bits can address in groups of four elements.
inline constexpr std::int64_t kMaxQuickUnits = (std::int64_t{1} << 34) / kTile;
// The map contains the tensor of every kMapStep-th tile; from there a warp searches for its own.
inline constexpr int kMapStep = 8;

// A tensor with rank-1 scales as a matrix: some leading axes are folded into rows, the others into columns,
// so that an element has two maxima whatever the number of axes (cuda/rank1/matrix_view.h chooses the fold).
// A warp processes a panel at a time: up to 32 rows of a strip, in which some lanes share a row, eight
// columns each. Panels are counted over all tensors of a launch, strips first.
struct Rank1View {
  float*
      folded;  // for each moment with rank-1 scales: old rows, old columns, new rows, new columns (workspace)
  std::int64_t rows, columns;
  std::uint32_t first_panel;
  std::uint32_t strips;
  std::uint32_t magic;  // and shifts: divide a chunk's number by the chunks of a row
  std::uint32_t apart;  // chunks from a lane's row to its next
  std::uint8_t shift[2];
  std::uint8_t leading;    // the number of axes that are rows
  std::uint8_t lane_bits;  // 2^lane_bits lanes share a row
  std::uint8_t quick;      // its panels use vectors
  std::uint8_t unused[3];
};

// The slots of a group whose moments have rank-1 scales.
struct Rank1Slots {
  std::int32_t count = 0;
  std::int32_t slot[kMaxSlots] = {};
};

// One tensor. A unit is a tile, or a block if that is larger; units are counted over all tensors of a launch.
// Neighbouring pointers are loaded in pairs (PointerPair).
struct alignas(16) TensorEntry {
  void* param;
  const void* grad;
  void* codes[kMaxSlots];
  void* residual;
  float* scales[kMaxSlots];
  float* new_scales;  // rank-1 scales: the maxima of the new moments, in the workspace
  std::int64_t numel;
  std::int64_t offset;  // the index of its first element in the complete parameter
  std::uint64_t id;
  std::uint32_t first_unit;
  std::uint32_t quick_units;  // the number of first units that vectors can process
  std::int32_t block;         // in elements; 0 without blocks
  std::uint8_t param_dtype, grad_dtype;
  std::uint8_t plain;        // fp32 states in a launch of another format
  std::uint8_t aligned;      // the gradient is aligned to 16 bytes
  std::uint8_t lanes_log2;   // log2 of the lanes that share a block, or its first tile if the block is larger
  std::uint8_t quick_large;  // its units are quick and are blocks larger than a tile
  std::uint8_t quick_end;    // the part after its complete tiles is quick, too
  std::uint8_t usual;  // default blocks, and weights and gradients both bf16 or, with fp32 weights, both fp32
  std::int32_t ndim;
  std::uint32_t first_tile;      // its first index among the sums of tiles, for rules with a trust ratio
  float ratio;                   // the trust ratio of this step; written on the device
  std::uint32_t tensor;          // its number in the group
  std::int64_t shape[kMaxDims];  // for rank-1 scales
  Rank1View rank1;
};
static_assert(sizeof(TensorEntry) % 16 == 0);

// The number of tiles whose sums are added first, and the number of such nodes of a tensor.
inline constexpr int kTilesOfNode = 32;
OCTAVO_HD inline std::int64_t nodes_of(std::int64_t numel) {
  return (numel + kTilesOfNode * kTile - 1) / (kTilesOfNode * kTile);
}

// The largest number of units in one launch: 2^40 elements, more than any device has.
inline constexpr std::int64_t kMaxUnits = std::int64_t{1} << 31;

// The constants of a step, written by the host or, if a scalar is on the device, by a preceding kernel.
struct alignas(16) Prepared {
  std::byte consts[64];      // the algorithm's Consts
  std::uint64_t round_base;  // the key of stochastic rounding: seed and step
  std::uint32_t skip;        // nothing is written
  std::uint32_t in_range;    // the constants allow the lane without branches
  float least_result;  // the smallest result for which that lane is exact (lane/exact.h); 0 if nothing is
                       // divided
};

struct StepParams {
  const TensorEntry* tensors;
  const std::uint32_t* map;
  std::uint32_t* counters;   // two zeros: requested units, finished warps; zero again after the launch
  const Prepared* prepared;  // null: `constants` apply
  std::uint32_t units;       // the number of units or panels
  std::uint32_t grouped;     // the number of first units that warps process several at a time
  formula::Sums* sums;       // the sums of tiles, for rules with a trust ratio
  Prepared constants;
};

}  // namespace octavo::cuda
