// A CPU implementation is a table of functions over spans. There is one table per instruction set
// (kernels_scalar.cc, kernels_avx2.cc, …), and implementations.cc chooses one at run time. No SIMD type is
// part of this interface.
// SPDX-License-Identifier: MIT
#pragma once

#include "core/builtin_registry.h"
#include "formula/dropout.h"
#include "formula/norm.h"
#include "formula/trust_ratio.h"

#include <octavo/types.h>

#include <cstddef>
#include <cstdint>

namespace octavo::cpu {

// The number of elements that are processed while they stay in the first-level cache. A larger block is one
// tile.
inline constexpr std::int64_t kTile = 1024;
inline constexpr std::int64_t kMaxTile = kMaxBlockSize;
static_assert(kMaxTile >= kTile);
// The padding after the end of a tile: one full vector, so that tails need no separate code.
inline constexpr std::int64_t kPad = 64;

// The working memory of a thread. Its contents do not outlive a call.
struct Scratch {
  alignas(64) float param[kMaxTile + kPad];
  alignas(64) float grad[kMaxTile + kPad];
  alignas(64) float state[kMaxSlots][kMaxTile + kPad];
  alignas(64) float scale_in[kMaxSlots][kMaxTile + kPad];     // each element's rank-1 scale before the step
  alignas(64) float inverse_out[kMaxSlots][kMaxTile + kPad];  // the reciprocal of the scale after the step
  alignas(64) float update[kMaxTile + kPad];  // the unscaled updates of a rule with a trust ratio
  std::uint32_t max_bits[kMaxSlots][kMaxTile / kMinBlockSize];  // the maximum of each block in the tile
  alignas(64) std::uint8_t codes[kMaxSlots][kMaxTile + kPad];
};

struct Shape {
  const std::int64_t* dims = nullptr;
  int ndim = 0;
};
// A tensor with rank-1 scales as a matrix: its first `leading` axes are rows (cpu/rank1.h).
struct Fold {
  int leading = 0;
  std::int64_t rows = 0, columns = 0;
};

// The number of elements that a thread processes at a time: long enough to hide the cost of a task, short
// enough to balance the load. It is a multiple of any block, and a power of two of the tiles of the
// trust-ratio sums.
inline constexpr std::int64_t kRun = 8 * kMaxBlockSize;
inline constexpr std::int64_t kRunTiles = kRun / formula::kSumTile;
static_assert(kTile % formula::kSumTile == 0 && (kRunTiles & (kRunTiles - 1)) == 0);

// A run of one tensor's elements, at most kRun. `begin` is a multiple of the block.
struct StepTask {
  void* param;
  const void* grad;
  void* residual;
  void* codes[kMaxSlots];
  // For moments with rank-1 scales, both arrays are folded: the scales before the step, and the reciprocals
  // of the scales after it. In the first pass `scales_out` has the maxima of rows from `first_row` on, then
  // those of columns.
  const float* scales_in[kMaxSlots];
  float* scales_out[kMaxSlots];
  DType param_dtype, grad_dtype;
  WeightStore store;
  std::int64_t begin, count;
  std::int64_t block;
  std::uint64_t index;  // the index of element `begin` in the complete parameter, for stochastic rounding
  formula::RoundKey keys[1 + kMaxSlots];
  Fold fold;                          // for rank-1 scales
  std::int64_t first_row, part_rows;  // used in the first pass
  bool maxima_only;                   // rank-1 scales, first pass: only compute the maxima of the new moments
  formula::Sums* sums;  // not null: the first pass of a rule with a trust ratio, which writes only these sums
  float ratio;          // the tensor's trust ratio, in the second pass
  const void* consts;   // the algorithm's Consts
  Scratch* scratch;
};
using StepFn = void (*)(const StepTask&);

// One chunk of the gradient norm.
struct NormPart {
  double sum = 0.0;            // the sum of squares
  std::uint32_t max_bits = 0;  // the bits of the largest magnitude
  std::int64_t nonfinite = 0;
};
using NormFn = NormPart (*)(const void* data, DType dtype, std::int64_t begin, std::int64_t count,
                            float factor, Scratch* scratch);

// Encodes or decodes a run of complete blocks (the last may be partial). `scales` has one element for each
// block. For a codec with rank-1 scales it has one for each element, is only read, and is padded to the next
// full vector.
using EncodeFn = void (*)(const float* values, std::int64_t count, std::int64_t block, void* codes,
                          float* scales, Scratch* scratch);
using DecodeFn = void (*)(const void* codes, const float* scales, std::int64_t count, std::int64_t block,
                          float* values, Scratch* scratch);

// A run of one sample's elements. Its first element has the number `at` in the tensor and `element` in the
// sample.
struct DropTask {
  const void* from;
  void* to;
  DType dtype;
  std::int64_t at, count;
  std::uint64_t element;
  formula::RoundKey key;
  formula::Dropout how;
  Scratch* scratch;
};
using DropFn = void (*)(const DropTask&);

// A run of elements of two tensors: to = from (if `first`), otherwise to + from in fp32, rounded to the type
// of `to`.
struct AddTask {
  void* to;
  const void* from;
  DType to_dtype, from_dtype;
  std::int64_t at, count;
  bool first;
  Scratch* scratch;
};
using AddFn = void (*)(const AddTask&);

struct Kernels {
  const char* name;
  const char* description;
  StepFn step[Algorithms::kSize][Formats::kSize];
  EncodeFn encode[Formats::kSize][2];
  DecodeFn decode[Formats::kSize][2];
  NormFn norm;
  DropFn drop;
  AddFn add;
};

using formula::kNormChunk;

// Returns the number of floats of a shape's axis maxima.
std::int64_t rank1_maxima_count(Shape shape);

}  // namespace octavo::cpu
