// Curves of the report: thins and smooths them, and writes them as JSON.
// SPDX-License-Identifier: MIT
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <vector>

namespace octavo_train {

struct Point {
  double x = 0;
  double y = 0;  // NaN where the run logged a number that was not finite
};
using Curve = std::vector<Point>;

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

// Returns {"x": […], "y": […]} of the thinned curve, with `digits` significant digits. A gap is null. Columns
// take half the bytes of pairs.
nlohmann::ordered_json curve_json(const Curve& curve, int digits);

}  // namespace octavo_train
