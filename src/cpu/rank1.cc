// SPDX-License-Identifier: MIT
#include "cpu/rank1.h"

#include "formula/blockwise.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace octavo::cpu {
namespace {

std::uint32_t magnitude(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU; }
void raise_maximum(float& maximum, std::uint32_t bits) {
  maximum = std::bit_cast<float>(std::max(std::bit_cast<std::uint32_t>(maximum), bits));
}

// Splits a flat range into runs along the last axis and calls f(coordinates of the leading axes, first
// column, length, at).
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

// Calls f(index, position among all maxima) for every slice that contains a row, or a column.
template <class Fn>
void for_slices(Shape shape, const Fold& fold, bool rows, Fn&& f) {
  std::int64_t start = 0;
  for (int axis = 0; axis < shape.ndim; ++axis) {
    const std::int64_t size = shape.dims[axis];
    if ((axis < fold.leading) == rows) {
      std::int64_t behind = 1;
      const int end = rows ? fold.leading : shape.ndim;
      for (int next = axis + 1; next < end; ++next) behind *= shape.dims[next];
      const std::int64_t count = rows ? fold.rows : fold.columns;
      for (std::int64_t i = 0, slice = 0; i < count; slice = slice + 1 < size ? slice + 1 : 0) {
        for (std::int64_t k = 0; k < behind; ++k) f(i++, start + slice);
      }
    }
    start += size;
  }
}

// Writes `value` of the smallest maximum (as bits) of each row and column.
template <class Fn>
void fold(Shape shape, const Fold& fold, const float* maxima, float* folded, Fn&& value) {
  const std::int64_t count = fold.rows + fold.columns;
  std::fill(folded, folded + count, std::bit_cast<float>(0x7FFFFFFFU));
  for (const bool rows : {true, false}) {
    float* const to = rows ? folded : folded + fold.rows;
    for_slices(shape, fold, rows, [&](std::int64_t i, std::int64_t slice) {
      to[i] = std::bit_cast<float>(std::min(std::bit_cast<std::uint32_t>(to[i]), magnitude(maxima[slice])));
    });
  }
  for (std::int64_t i = 0; i < count; ++i) folded[i] = value(std::bit_cast<std::uint32_t>(folded[i]));
}

}  // namespace

std::int64_t rank1_maxima_count(Shape shape) {
  std::int64_t total = 0;
  for (int axis = 0; axis < shape.ndim; ++axis) {
    if (shape.dims[axis] == 0) return 0;  // without elements there are no maxima
    total += shape.dims[axis];
  }
  return total;
}

void raise_rank1_maxima(Shape shape, const float* values, std::int64_t begin, std::int64_t count,
                        float* maxima) {
  for_rows(shape, begin, count,
           [&](const auto& at, std::int64_t column, std::int64_t run, std::int64_t done) {
             std::int64_t first = 0;
             for (int axis = 0; axis < shape.ndim - 1; ++axis) first += shape.dims[axis];
             std::uint32_t row = 0;
             for (std::int64_t i = 0; i < run; ++i) {
               const std::uint32_t bits = magnitude(values[done + i]);
               raise_maximum(maxima[first + column + i], bits);
               if (bits > row) row = bits;
             }
             std::int64_t start = 0;
             for (int axis = 0; axis < shape.ndim - 1; ++axis) {
               raise_maximum(maxima[start + at[static_cast<std::size_t>(axis)]], row);
               start += shape.dims[axis];
             }
           });
}

void rank1_scales(Shape shape, const float* maxima, std::int64_t begin, std::int64_t count, float* scales) {
  for_rows(shape, begin, count,
           [&](const auto& at, std::int64_t column, std::int64_t run, std::int64_t done) {
             std::uint32_t row = 0xFFFFFFFFU;
             std::int64_t start = 0;
             for (int axis = 0; axis < shape.ndim - 1; ++axis) {
               row = std::min(row, magnitude(maxima[start + at[static_cast<std::size_t>(axis)]]));
               start += shape.dims[axis];
             }
             for (std::int64_t i = 0; i < run; ++i)
               scales[done + i] = formula::rank1_scale(std::min(row, magnitude(maxima[start + column + i])));
           });
}

Fold fold_of(Shape shape) {
  Fold best{0, 0, std::numeric_limits<std::int64_t>::max() / 2};
  std::int64_t columns = 1;
  for (int axis = 0; axis < shape.ndim; ++axis) columns *= shape.dims[axis];
  std::int64_t rows = 1;
  for (int leading = 0; leading < shape.ndim; ++leading) {
    if (rows + columns < best.rows + best.columns) best = {leading, rows, columns};
    rows *= shape.dims[leading];
    columns /= shape.dims[leading];
  }
  return best;
}

void fold_scales(Shape shape, const Fold& how, const float* maxima, float* folded) {
  fold(shape, how, maxima, folded, [](std::uint32_t bits) { return formula::rank1_scale(bits); });
}

void fold_inverses(Shape shape, const Fold& how, const float* maxima, float* folded) {
  fold(shape, how, maxima, folded,
       [](std::uint32_t bits) { return formula::rank1_inverse(scalar::F32(formula::rank1_scale(bits))).v; });
}

void raise_maxima_to(const float* by, std::int64_t count, float* maxima) {
  for (std::int64_t i = 0; i < count; ++i) raise_maximum(maxima[i], std::bit_cast<std::uint32_t>(by[i]));
}

void unfold_maxima(Shape shape, const Fold& how, const float* folded, float* maxima) {
  std::fill(maxima, maxima + rank1_maxima_count(shape), 0.0F);
  for (const bool rows : {true, false}) {
    const float* const from = rows ? folded : folded + how.rows;
    for_slices(shape, how, rows, [&](std::int64_t i, std::int64_t slice) {
      raise_maximum(maxima[slice], std::bit_cast<std::uint32_t>(from[i]));
    });
  }
}

}  // namespace octavo::cpu
