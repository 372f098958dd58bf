// Rank-1 scales on a GPU (cpu/rank1.cc has the definition): per axis the largest magnitude of every slice,
// per element the smallest over axes. Maxima compare as bit patterns, so any order gives the same.
// SPDX-License-Identifier: MIT
#pragma once

#include "cuda/table.h"
#include "formula/blockwise.h"

namespace octavo::cuda {

// Most values are already below the maximum, and a read costs less than an atomic operation. A stale value
// from a cache is never above the true one, so at worst it costs one more operation.
__device__ inline void raise_maximum(float* maximum, std::uint32_t bits) {
  auto* word = reinterpret_cast<std::uint32_t*>(maximum);
  if (*word < bits) atomicMax(word, bits);
}

// Walks neighbouring elements of a tensor. The maxima of all axes lie one after the other.
class AxisWalk {
 public:
  __device__ AxisWalk(const TensorEntry& t, std::int64_t at) : t_(t), at_(at) { locate(); }

  __device__ void next() {
    ++at_;
    if (++column_ == t_.shape[t_.ndim - 1]) locate();
  }

  // The smallest maximum of the element's slices, at least 2^-126 where it is not zero.
  __device__ float scale(const float* maxima) const {
    std::uint32_t bits = magnitude(maxima, last_ + column_);
    for_leading([&](std::int64_t slice) { bits = min(bits, magnitude(maxima, slice)); });
    return formula::axis_scale(bits);
  }

  __device__ void raise(float* maxima, float value) const {
    const std::uint32_t bits = __float_as_uint(value) & 0x7FFFFFFFU;
    raise_maximum(maxima + last_ + column_, bits);
    for_leading([&](std::int64_t slice) { raise_maximum(maxima + slice, bits); });
  }

 private:
  __device__ void locate() {
    std::int64_t rest = at_;
    last_ = 0;
    for (int axis = t_.ndim - 1; axis >= 0; --axis) {
      const std::int64_t coordinate = rest % t_.shape[axis];
      rest /= t_.shape[axis];
      if (axis == t_.ndim - 1) {
        column_ = coordinate;
      } else {
        slice_[axis] = coordinate;
        last_ += t_.shape[axis];
      }
    }
  }

  template <class Fn>
  __device__ void for_leading(Fn&& f) const {
    std::int64_t start = 0;
    for (int axis = 0; axis < t_.ndim - 1; ++axis) {
      f(start + slice_[axis]);
      start += t_.shape[axis];
    }
  }

  __device__ static std::uint32_t magnitude(const float* maxima, std::int64_t slice) {
    return __float_as_uint(maxima[slice]) & 0x7FFFFFFFU;
  }
  const TensorEntry& t_;
  std::int64_t at_, column_ = 0, last_ = 0;
  std::int64_t slice_[kMaxDims] = {};
};

// Eight neighbouring elements of one row: their slices are looked up once. Rows run along the last axis that
// is longer than one; axes of length one behind it hold the maximum of all, and change no minimum. REQUIRES:
// rows of a multiple of eight elements, and a first element that is one too.
class AxisRow {
 public:
  __device__ AxisRow(const TensorEntry& t, std::int64_t at) : t_(t), axes_(t.ndim) {
    while (axes_ > 1 && t.shape[axes_ - 1] == 1) --axes_;
    if (t.numel <= 0xFFFFFFFFLL) {
      locate(static_cast<std::uint32_t>(at));  // divisions of half the width take a quarter of the time
    } else {
      locate(static_cast<std::uint64_t>(at));
    }
  }

  __device__ void scales(const float* maxima, float* out) const {
    std::uint32_t row = 0xFFFFFFFFU;
    for_leading([&](std::int64_t slice) { row = min(row, magnitude(maxima[slice])); });
#pragma unroll
    for (int i = 0; i < kChunk; ++i) out[i] = formula::axis_scale(min(row, magnitude(maxima[columns_ + i])));
  }

  __device__ void raise(float* maxima, const float* values) const {
    std::uint32_t row = 0;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const std::uint32_t bits = magnitude(values[i]);
      row = max(row, bits);
      raise_maximum(maxima + columns_ + i, bits);
    }
    for_leading([&](std::int64_t slice) { raise_maximum(maxima + slice, row); });
    std::int64_t trailing = 0;
    for (int axis = 0; axis < axes_; ++axis) trailing += t_.shape[axis];
    for (int axis = axes_; axis < t_.ndim; ++axis) raise_maximum(maxima + trailing++, row);
  }

 private:
  template <class Index>
  __device__ void locate(Index rest) {
    const int last = axes_ - 1;
    columns_ = static_cast<std::int64_t>(rest % static_cast<Index>(t_.shape[last]));
    rest /= static_cast<Index>(t_.shape[last]);
    for (int axis = last - 1; axis >= 0; --axis) {
      slice_[axis] = static_cast<std::int64_t>(rest % static_cast<Index>(t_.shape[axis]));
      rest /= static_cast<Index>(t_.shape[axis]);
      columns_ += t_.shape[axis];
    }
  }
  template <class Fn>
  __device__ void for_leading(Fn&& f) const {
    std::int64_t start = 0;
    for (int axis = 0; axis < axes_ - 1; ++axis) {
      f(start + slice_[axis]);
      start += t_.shape[axis];
    }
  }
  __device__ static std::uint32_t magnitude(float x) { return __float_as_uint(x) & 0x7FFFFFFFU; }

  const TensorEntry& t_;
  int axes_;              // without those of length one at the end
  std::int64_t columns_;  // the first element's place among all maxima
  std::int64_t slice_[kMaxDims - 1] = {};
};

}  // namespace octavo::cuda
