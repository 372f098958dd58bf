// Curves on their way to the page: smoothed, thinned, and written as JSON.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/report/run_data.h"

#include <cstddef>
#include <span>
#include <string>

namespace octavo::train {

inline constexpr std::size_t kMostPoints = 2000;

// At most `most` points, in order: a longer curve is cut into equal parts, and of each the lowest and the
// highest point are kept, with one gap where it had any; so are the curve's first and last points. No peak
// and no dip is lost. REQUIRES: most >= 8.
Curve thinned(const Curve& curve, std::size_t most = kMostPoints);

// How many points the running mean covers, about: 1 where the curve is too short to need one.
std::size_t smoothing_window(const Curve& curve);

// The mean of `window` points around each; near the start of fewer, equally many on both sides, since a loss
// falls fast there; at the end of those that there are. Gaps stay gaps.
Curve smoothed(const Curve& curve, std::size_t window);

// The eval_difference of every run but the first.
void add_differences(std::span<RunData> runs);

// What the page's script draws: names, curves, and the colours' order. Not yet escaped for a <script>.
std::string curves_json(std::span<const RunData> runs);

}  // namespace octavo::train
