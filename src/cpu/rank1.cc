// Rank-1 scales (Li et al. 2023): per axis the largest magnitude of every slice, per element the smallest
// over axes. Maxima and minima compare bit patterns: order-free, so the result does not depend on threads.
// SPDX-License-Identifier: MIT
#include "cpu/kernels.h"
#include "formula/blockwise.h"

#include <array>
#include <atomic>
#include <bit>

namespace octavo::cpu {
namespace {

// Walks a flat range as runs along the last axis: f(coordinates of the leading axes, first column, length,
// at).
template <class Fn>
void for_rows(Shape shape, std::int64_t begin, std::int64_t count, Fn&& f) {
  if (count == 0) return;  // a dimension may be zero
  std::array<std::int64_t, kMaxDims> at{};
  std::int64_t rest = begin;
  for (int axis = shape.ndim - 1; axis >= 0; --axis) {
    at[static_cast<std::size_t>(axis)] = rest % shape.dims[axis];
    rest /= shape.dims[axis];
  }
  const auto last = static_cast<std::size_t>(shape.ndim - 1);
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t room = shape.dims[last] - at[last];
    const std::int64_t run = room < count - done ? room : count - done;
    f(at, at[last], run, done);
    done += run;
    at[last] = 0;
    for (int axis = shape.ndim - 2; axis >= 0; --axis) {
      if (++at[static_cast<std::size_t>(axis)] < shape.dims[axis]) break;
      at[static_cast<std::size_t>(axis)] = 0;
    }
  }
}

void raise(float& maximum, std::uint32_t bits) {
  const std::atomic_ref<std::uint32_t> target(reinterpret_cast<std::uint32_t&>(maximum));
  std::uint32_t old = target.load(std::memory_order_relaxed);
  while (old < bits && !target.compare_exchange_weak(old, bits, std::memory_order_relaxed)) {
  }
}

}  // namespace

std::int64_t axis_maxima_count(Shape shape) {
  std::int64_t total = 0;
  for (int axis = 0; axis < shape.ndim; ++axis) {
    if (shape.dims[axis] == 0) return 0;  // no elements, no maxima
    total += shape.dims[axis];
  }
  return total;
}

void raise_axis_maxima(Shape shape, const float* values, std::int64_t begin, std::int64_t count,
                       float* maxima) {
  for_rows(shape, begin, count,
           [&](const auto& at, std::int64_t column, std::int64_t run, std::int64_t done) {
             std::int64_t first = 0;
             for (int axis = 0; axis < shape.ndim - 1; ++axis) first += shape.dims[axis];
             std::uint32_t row = 0;
             for (std::int64_t i = 0; i < run; ++i) {
               const std::uint32_t bits = std::bit_cast<std::uint32_t>(values[done + i]) & 0x7FFFFFFFU;
               raise(maxima[first + column + i], bits);
               if (bits > row) row = bits;
             }
             std::int64_t start = 0;
             for (int axis = 0; axis < shape.ndim - 1; ++axis) {
               raise(maxima[start + at[static_cast<std::size_t>(axis)]], row);
               start += shape.dims[axis];
             }
           });
}

void rank1_scales(Shape shape, const float* maxima, std::int64_t begin, std::int64_t count, float* scales) {
  for_rows(
      shape, begin, count, [&](const auto& at, std::int64_t column, std::int64_t run, std::int64_t done) {
        std::uint32_t row = 0xFFFFFFFFU;
        std::int64_t start = 0;
        for (int axis = 0; axis < shape.ndim - 1; ++axis) {
          const std::uint32_t bits =
              std::bit_cast<std::uint32_t>(maxima[start + at[static_cast<std::size_t>(axis)]]) & 0x7FFFFFFFU;
          if (bits < row) row = bits;
          start += shape.dims[axis];
        }
        for (std::int64_t i = 0; i < run; ++i) {
          std::uint32_t bits = std::bit_cast<std::uint32_t>(maxima[start + column + i]) & 0x7FFFFFFFU;
          if (row < bits) bits = row;
          scales[done + i] = formula::axis_scale(bits);
        }
      });
}

}  // namespace octavo::cpu
