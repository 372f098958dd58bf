// SPDX-License-Identifier: MIT
#include "train/report/curves.h"

#include "train/base/numbers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace octavo_train {
namespace {

std::string json_number(double value, int digits) {
  return std::isfinite(value) ? significant(value, digits) : "null";
}

// Writes columns rather than pairs, which takes half the bytes. Six digits are more than a screen shows.
std::string json_curve(const Curve& curve) {
  std::string x, y;
  for (const Point& point : thinned(curve)) {
    x += (x.empty() ? "" : ",") + json_number(point.x, 16);
    y += (y.empty() ? "" : ",") + json_number(point.y, 6);
  }
  return "{\"x\":[" + x + "],\"y\":[" + y + "]}";
}

std::string json_text(const std::string& text) {
  return Record(text).dump(-1, ' ', false, Record::error_handler_t::replace);
}

// Writes a list, because the names of metrics are arbitrary texts, and not all of them are suitable as member
// names.
std::string json_metrics(const std::vector<MetricCurve>& metrics) {
  std::string out;
  for (const MetricCurve& metric : metrics) {
    out += (out.empty() ? "" : ",") + std::string("{\"name\":") + json_text(metric.name) +
           ",\"curve\":" + json_curve(metric.curve) + "}";
  }
  return "[" + out + "]";
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

std::string curves_json(std::span<const RunData> runs) {
  std::string out;
  for (const RunData& run : runs) {
    out += (out.empty() ? "" : ",\n") + std::string("{\"name\":") + json_text(run.name);
    const std::size_t window = smoothing_window(run.train_loss);
    out += ",\"unigram\":" + json_number(number_in(run.start, "/unigram_entropy").value_or(std::nan("")), 6);
    out += ",\"train\":" + json_curve(run.train_loss);
    out += ",\"mean\":" + (window > 1 ? json_curve(smoothed(run.train_loss, window)) : std::string("null"));
    out += ",\"eval\":" + json_curve(run.eval_loss);
    out += ",\"difference\":" + json_curve(run.eval_difference);
    out += ",\"lr\":" + json_curve(run.lr);
    out += ",\"grad_norm\":" + json_curve(run.grad_norm);
    out += ",\"throughput\":" + json_curve(run.throughput);
    out += ",\"metrics\":" + json_metrics(run.metrics);
    out += ",\"loss_scale\":" + json_curve(run.loss_scale);
    out += ",\"device_memory\":" + json_curve(run.device_memory);
    out += ",\"host_memory\":" + json_curve(run.host_memory) + "}";
  }
  return "{\"runs\":[\n" + out + "\n]}\n";
}

void add_differences(std::span<RunData> runs) {
  std::map<double, double> first;
  for (const Point& point : runs.front().eval_loss) first[point.x] = point.y;
  for (RunData& run : runs.subspan(1)) {
    for (const Point& point : run.eval_loss) {
      const auto other = first.find(point.x);
      if (other != first.end()) run.eval_difference.push_back({point.x, point.y - other->second});
    }
  }
}

}  // namespace octavo_train
