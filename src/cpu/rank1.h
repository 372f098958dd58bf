// Rank-1 scales (Li et al. 2023). Each axis has the largest magnitude of every slice, and the scale of an
// element is the smallest of these over the axes. Maxima and minima compare bit patterns, which is
// independent of the order, so the result does not depend on threads.
//
// A step folds the axes: some leading ones become rows, the others columns. So an element has one value of
// its row and one of its column, whatever the number of axes. Old maxima become scales, and the smaller one
// applies. New maxima become reciprocals, and the larger one applies, because rounding preserves their order.
// Folded values are one array: rows, then columns.
// SPDX-License-Identifier: MIT
#pragma once

#include "cpu/kernels.h"

namespace octavo::cpu {

// Raises the axis maxima to the magnitudes of elements [begin, begin + count).
void raise_rank1_maxima(Shape shape, const float* values, std::int64_t begin, std::int64_t count,
                        float* maxima);
// Computes the rank-1 scale of each element: the smallest of its axis maxima, at least 2^-126 unless it is
// zero.
void rank1_scales(Shape shape, const float* maxima, std::int64_t begin, std::int64_t count, float* scales);

// Returns the fold with the fewest rows and columns. REQUIRES: no axis is empty.
Fold fold_of(Shape shape);
void fold_scales(Shape shape, const Fold& fold, const float* maxima, float* folded);
void fold_inverses(Shape shape, const Fold& fold, const float* maxima, float* folded);
// Raises each maximum to the corresponding value of `by`.
void raise_maxima_to(const float* by, std::int64_t count, float* maxima);
// Computes the maxima of axes from those of rows and columns.
void unfold_maxima(Shape shape, const Fold& fold, const float* folded, float* maxima);

}  // namespace octavo::cpu
