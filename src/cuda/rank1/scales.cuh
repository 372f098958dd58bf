// Rank-1 scales on a GPU (cpu/rank1.cc has the definition): each axis has the largest magnitude of every
// slice, and each element the smallest of these over the axes. Maxima compare as bit patterns, so any order
// gives the same result.
//
// Before the passes of a step, the maxima of leading axes are folded into one value per row, the others into
// one per column (Rank1View), so an element needs one of two values. Old maxima become scales, and the
// smaller one applies. New maxima become reciprocals, and the larger one applies (formula::rank1_inverse).
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/rank1/matrix_view.h"
#include "formula/blockwise.h"

namespace octavo::cuda {

// Most values are already below the maximum, and a read costs less than an atomic operation. A stale value
// from a cache is never above the true one, so at worst it costs one more operation.
__device__ inline void raise_maximum(float* maximum, std::uint32_t bits) {
  auto* word = reinterpret_cast<std::uint32_t*>(maximum);
  if (*word < bits) atomicMax(word, bits);
}

__device__ inline std::uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFU; }

// The parts of a view for its `moment`-th moment with rank-1 scales.
__device__ inline float* old_rows(const Rank1View& v, int moment) {
  return v.folded + moment * folded_floats(v);
}
__device__ inline float* old_columns(const Rank1View& v, int moment) {
  return old_rows(v, moment) + whole_quads(v.rows);
}
__device__ inline float* new_rows(const Rank1View& v, int moment) {
  return old_rows(v, moment) + folded_floats(v) / 2;
}
__device__ inline float* new_columns(const Rank1View& v, int moment) {
  return old_columns(v, moment) + folded_floats(v) / 2;
}

// Returns the number of maxima of a moment, which are stored axis after axis.
__device__ inline std::int64_t maxima_of(const TensorEntry& t) {
  std::int64_t count = 0;
#pragma unroll 1
  for (int axis = 0; axis < t.ndim; ++axis) count += t.shape[axis];
  return count;
}
__device__ inline float* new_maxima(const TensorEntry& t, int moment) {
  return t.new_scales + moment * maxima_of(t);
}

// Returns the first maximum of the only axis in [first, end) that is longer than one, or -1 if there is no
// such axis or more than one.
__device__ inline std::int64_t only_long_axis(const TensorEntry& t, int first, int end) {
  std::int64_t start = 0;
  std::int64_t found = -1;
  int longer = 0;
#pragma unroll 1
  for (int axis = 0; axis < end; ++axis) {
    if (axis >= first && t.shape[axis] > 1) {
      found = start;
      ++longer;
    }
    start += t.shape[axis];
  }
  return longer == 1 ? found : -1;
}

// Calls f(position among all maxima) for a row's slices, or a column's. `kOnes` includes axes of length one.
template <bool kOnes, class Fn>
__device__ inline void for_slices(const TensorEntry& t, bool row, std::int64_t index, Fn&& f) {
  const int first = row ? 0 : t.rank1.leading;
  const int end = row ? t.rank1.leading : t.ndim;
  std::int64_t start = 0;
#pragma unroll 1
  for (int axis = 0; axis < end; ++axis) start += t.shape[axis];
#pragma unroll 1
  for (int axis = end - 1; axis >= first; --axis) {
    const std::int64_t size = t.shape[axis];
    start -= size;
    if (size == 1) {
      if constexpr (kOnes) f(start);
      continue;
    }
    std::int64_t coordinate = index;
    if (axis > first) {
      coordinate = index % size;
      index /= size;
    }
    f(start + coordinate);
  }
}

__device__ inline float smaller_scale(float a, float b) {
  return __uint_as_float(min(__float_as_uint(a), __float_as_uint(b)));
}

// Divides a moment by its scale; the result is zero if the scale is not finite. `kFinite`: the moment is
// finite.
template <bool kFinite>
__device__ inline float over_rank1(float moment, float row, float column) {
  const float inverse = fmaxf(row, column);
  return kFinite || inverse > 0.0F ? moment * inverse : 0.0F;
}

// The scales of one element.
class Rank1Element {
 public:
  __device__ Rank1Element(const TensorEntry& t, std::int64_t at) : v_(t.rank1) {
    if (t.numel <= 0xFFFFFFFFLL) {  // 32-bit divisions take a quarter of the time
      row_ = static_cast<std::uint32_t>(at) / static_cast<std::uint32_t>(v_.columns);
    } else {
      row_ = at / v_.columns;
    }
    column_ = at - row_ * v_.columns;
  }
  [[nodiscard]] __device__ float scale(int moment) const {
    return smaller_scale(old_rows(v_, moment)[row_], old_columns(v_, moment)[column_]);
  }
  [[nodiscard]] __device__ float over(int moment, float x) const {
    return over_rank1<false>(x, new_rows(v_, moment)[row_], new_columns(v_, moment)[column_]);
  }

 private:
  const Rank1View& v_;
  std::int64_t row_, column_;
};

__device__ inline void load_eight(const float* from, float* to) {
  const auto* quads = reinterpret_cast<const float4*>(from);
  const float4 a = quads[0];
  const float4 b = quads[1];
  to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
  to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

// The scales of eight neighbours of a row, by the number of their chunk. REQUIRES: columns that are a
// multiple of eight (Rank1View::magic).
class Rank1Chunk {
 public:
  __device__ Rank1Chunk(const TensorEntry& t, std::uint32_t chunk) : v_(t.rank1) {
    row_ = over_divisor(v_, __umulhi(v_.magic, chunk), chunk);
    column_ = std::int64_t{kChunk} * (chunk - row_ * static_cast<std::uint32_t>(v_.columns / kChunk));
  }
  // Replaces the values of codes by moments.
  __device__ void decode(int moment, float* x) const {
    float column[kChunk];
    load_eight(old_columns(v_, moment) + column_, column);
    const float row = old_rows(v_, moment)[row_];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) x[i] *= smaller_scale(row, column[i]);
  }
  // Divides finite moments by their scales.
  __device__ void over(int moment, const float* x, float* out) const {
    load_eight(new_columns(v_, moment) + column_, out);
    const float row = new_rows(v_, moment)[row_];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) out[i] = over_rank1<true>(x[i], row, out[i]);
  }

 private:
  const Rank1View& v_;
  std::uint32_t row_;
  std::int64_t column_;
};

}  // namespace octavo::cuda
