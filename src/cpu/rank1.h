// Rank-1 scales (Li et al. 2023): per axis the largest magnitude of every slice, per element the smallest
// over axes. Maxima and minima compare bit patterns: order-free, so the result does not depend on threads.
//
// A step folds the axes: some leading ones into rows, the others into columns, so that an element has one
// value of its row and one of its column, whatever the number of axes. Old maxima become scales, of which the
// smaller holds; new ones become reciprocals, of which the larger holds, because rounding keeps their order.
// Folded values are one array: rows, then columns.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/kernels.h"

namespace octavo::cpu {

// Raises axis maxima by the moments of elements [begin, begin + count).
void raise_rank1_maxima(Shape shape, const float* values, std::int64_t begin, std::int64_t count,
                        float* maxima);
// The rank-1 scale of each element: the smallest of its axis maxima, at least 2^-126 where it is not zero.
void rank1_scales(Shape shape, const float* maxima, std::int64_t begin, std::int64_t count, float* scales);

// The view with the fewest rows and columns. REQUIRES: no axis is empty.
Fold fold_of(Shape shape);
void fold_scales(Shape shape, const Fold& fold, const float* maxima, float* folded);
void fold_inverses(Shape shape, const Fold& fold, const float* maxima, float* folded);
// Raises magnitudes to others.
void raise_maxima_to(const float* by, std::int64_t count, float* maxima);
// The maxima of axes from those of rows and columns.
void unfold_maxima(Shape shape, const Fold& fold, const float* folded, float* maxima);

}  // namespace octavo::cpu
