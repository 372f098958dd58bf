// Prepares curves for the page: smooths and thins them, and writes them as JSON.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/report/run_data.h"

#include <cstddef>
#include <span>
#include <string>

namespace octavo_train {

inline constexpr std::size_t kMostPoints = 2000;

// Returns at most `most` points, in order. A longer curve is cut into equal parts. Of each part the lowest
// and the highest point are kept, and one gap (NaN) if there is any; so are the curve's first and last
// points. No peak and no dip is lost. REQUIRES: most >= 8.
Curve thinned(const Curve& curve, std::size_t most = kMostPoints);

// Returns the approximate number of points that the running mean covers: 1 if the curve is too short to need
// a running mean.
std::size_t smoothing_window(const Curve& curve);

// Returns the mean of `window` points around each point. Near the start, the mean is over fewer points,
// equally many on both sides, because a loss falls fast there. Near the end, it is over the points that
// exist. Gaps stay gaps.
Curve smoothed(const Curve& curve, std::size_t window);

// Sets the eval_difference of every run except the first.
void add_differences(std::span<RunData> runs);

// Returns the JSON that the page's script draws: names and curves, in the order of the colours. It is not yet
// escaped for a <script>.
std::string curves_json(std::span<const RunData> runs);

}  // namespace octavo_train
