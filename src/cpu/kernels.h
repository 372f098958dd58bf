// What a CPU implementation offers: a table of functions over spans, filled once per instruction set
// (kernels_scalar.cc, kernels_avx2.cc, …) and chosen at run time (implementations.cc). No SIMD type crosses
// it.
// SPDX-License-Identifier: MIT
#pragma once

#include "core/builtin_registry.h"
#include "formula/dropout.h"
#include "formula/norm.h"
#include "formula/trust_ratio.h"

#include <octavo/optimizer.h>

#include <cstddef>
#include <cstdint>

namespace octavo::cpu {

// Elements worked on while they stay in the first-level cache; a block that is larger is a tile of its own.
inline constexpr std::int64_t kTile = 1024;
inline constexpr std::int64_t kMaxTile = kMaxBlockSize;
static_assert(kMaxTile >= kTile);
// Room for one whole vector after the end of a tile, so that tails need no separate code.
inline constexpr std::int64_t kPad = 64;

// The working memory of a thread. Its contents are not kept between calls.
struct Scratch {
  alignas(64) float param[kMaxTile + kPad];
  alignas(64) float grad[kMaxTile + kPad];
  alignas(64) float state[kMaxSlots][kMaxTile + kPad];
  alignas(
      64) float scale_in[kMaxSlots][kMaxTile + kPad];  // axis scales: that of each element, before the step
  alignas(64) float inverse_out[kMaxSlots][kMaxTile + kPad];    // the reciprocal of that after the step
  alignas(64) float update[kMaxTile + kPad];                    // what a rule with two passes measures
  std::uint32_t max_bits[kMaxSlots][kMaxTile / kMinBlockSize];  // of each block in the tile
  alignas(64) std::uint8_t codes[kMaxSlots][kMaxTile + kPad];
};

struct Shape {
  const std::int64_t* dims = nullptr;
  int ndim = 0;
};
// A tensor with axis scales as a matrix: `leading` axes are rows (cpu/rank1.h).
struct Fold {
  int leading = 0;
  std::int64_t rows = 0, columns = 0;
};

// Elements of a tensor that a thread takes at a time: long enough to hide the hand-over, short enough to
// balance. A multiple of any block, and a power of two of the tiles that are measured.
inline constexpr std::int64_t kRun = 8 * kMaxBlockSize;
inline constexpr std::int64_t kRunTiles = kRun / formula::kSumTile;
static_assert(kTile % formula::kSumTile == 0 && (kRunTiles & (kRunTiles - 1)) == 0);

// A run of one tensor's elements, at most kRun. `begin` is a multiple of the block.
struct StepTask {
  void* param;
  const void* grad;
  void* residual;
  void* codes[kMaxSlots];
  // Of moments with axis scales both are folded: scales before the step, and reciprocals of those after it,
  // or in the first pass the maxima of rows from `first_row` on, then of columns.
  const float* scales_in[kMaxSlots];
  float* scales_out[kMaxSlots];
  DType param_dtype, grad_dtype;
  WeightStore store;
  std::int64_t begin, count;
  std::int64_t block;
  std::uint64_t index;  // of element `begin` in the whole parameter, for stochastic rounding
  formula::RoundKey keys[1 + kMaxSlots];
  Fold fold;                          // axis scales
  std::int64_t first_row, part_rows;  // in the first pass
  bool maxima_only;                   // axis scales, first pass: only raise maxima to the new moments
  formula::Sums* sums;  // not null: a rule's first of two passes, which writes nothing but these
  float ratio;          // of the tensor, in the second
  const void* consts;   // the algorithm's Consts
  Scratch* scratch;
};
using StepFn = void (*)(const StepTask&);

// One chunk of the gradient norm.
struct NormPart {
  double sum = 0.0;            // of squares
  std::uint32_t max_bits = 0;  // of magnitudes
  std::int64_t nonfinite = 0;
};
using NormFn = NormPart (*)(const void* data, DType dtype, std::int64_t begin, std::int64_t count,
                            float factor, Scratch* scratch);

// A run of whole blocks (the last may be partial). `scales` has one for each block; of a codec with axis
// scales one for each element, which is read, with room to the next whole vector.
using EncodeFn = void (*)(const float* values, std::int64_t count, std::int64_t block, void* codes,
                          float* scales, Scratch* scratch);
using DecodeFn = void (*)(const void* codes, const float* scales, std::int64_t count, std::int64_t block,
                          float* values, Scratch* scratch);

// A run of one sample's elements. `at`: its first one among those of the tensor, `element`: of the sample.
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

// A run of elements of two tensors: to = from (`first`), or to + from in fp32, rounded to the type of `to`.
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

// Floats that a shape's axis maxima take.
std::int64_t rank1_maxima_count(Shape shape);

}  // namespace octavo::cpu
