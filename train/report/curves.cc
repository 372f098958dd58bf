// SPDX-License-Identifier: MIT
#include "train/report/curves.h"

#include "train/base/numbers.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

namespace octavo_train {
namespace {

double rounded(double value, int digits) {
  const std::string text = decimal_text(value, std::chars_format::general, digits);
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

Curve thinned(const Curve& curve, std::size_t most) {
  if (curve.size() <= most) return curve;
  const bool gaps =
      !std::all_of(curve.begin(), curve.end(), [](const Point& p) { return std::isfinite(p.y); });
  const std::size_t parts = (most - 2) / (gaps ? 3 : 2);
  Curve out = {curve.front()};
  const std::size_t inner = curve.size() - 2;
  for (std::size_t part = 0; part < parts; ++part) {
    const std::size_t begin = 1 + inner * part / parts;
    const std::size_t end = 1 + inner * (part + 1) / parts;
    std::size_t low = end, high = end, gap = end;
    for (std::size_t i = begin; i < end; ++i) {
      if (!std::isfinite(curve[i].y)) {
        gap = std::min(gap, i);
        continue;
      }
      if (low == end || curve[i].y < curve[low].y) low = i;
      if (high == end || curve[i].y > curve[high].y) high = i;
    }
    std::array<std::size_t, 3> kept = {low, high, gap};
    std::sort(kept.begin(), kept.end());
    for (std::size_t i = 0; i < kept.size(); ++i) {
      if (kept[i] < end && (i == 0 || kept[i] != kept[i - 1])) out.push_back(curve[kept[i]]);
    }
  }
  out.push_back(curve.back());
  return out;
}

std::size_t smoothing_window(const Curve& curve) {
  return std::clamp<std::size_t>(curve.size() / 50, 1, 100);
}

Curve smoothed(const Curve& curve, std::size_t window) {
  std::vector<double> sums = {0}, counts = {0};  // over the points before each point
  for (const Point& point : curve) {
    const bool number = std::isfinite(point.y);
    sums.push_back(sums.back() + (number ? point.y : 0));
    counts.push_back(counts.back() + (number ? 1 : 0));
  }
  Curve out = curve;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (!std::isfinite(out[i].y)) continue;
    const std::size_t reach = std::min(window / 2, i);
    const std::size_t begin = i - reach, end = std::min(i + reach + 1, out.size());
    out[i].y = (sums[end] - sums[begin]) / (counts[end] - counts[begin]);
  }
  return out;
}

nlohmann::ordered_json curve_json(const Curve& curve, int digits) {
  nlohmann::ordered_json x = nlohmann::ordered_json::array(), y = x;
  for (const Point& point : thinned(curve)) {
    x.push_back(static_cast<std::int64_t>(point.x));
    y.push_back(std::isfinite(point.y) ? nlohmann::ordered_json(rounded(point.y, digits)) : nullptr);
  }
  return {{"x", std::move(x)}, {"y", std::move(y)}};
}

}  // namespace octavo_train
