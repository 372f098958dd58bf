// SPDX-License-Identifier: MIT
#include "train/report/curves.h"

#include "train/format/numbers.h"
#include "train/report/html.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace octavo::train {
namespace {

struct Chart {
  const char* id;
  const char* title;
  Curve RunData::*curve;
  Curve RunData::*second;  // drawn in the same chart, or none
};

constexpr std::array<Chart, 7> kCharts{{
    {"loss", "Loss", &RunData::train_loss, &RunData::eval_loss},
    {"difference", "Evaluation loss, difference", &RunData::eval_difference, nullptr},
    {"lr", "Learning rate", &RunData::lr, nullptr},
    {"grad_norm", "Gradient norm", &RunData::grad_norm, nullptr},
    {"tokens_per_second", "Tokens per second", &RunData::tokens_per_second, nullptr},
    {"memory", "Memory", &RunData::device_memory, &RunData::host_memory},
    {"loss_scale", "Loss scale", &RunData::loss_scale, nullptr},
}};

bool has_numbers(const Curve& curve) {
  return std::any_of(curve.begin(), curve.end(), [](const Point& point) { return std::isfinite(point.y); });
}

bool has_chart(const Chart& chart, std::span<const RunData> runs) {
  return std::any_of(runs.begin(), runs.end(), [&](const RunData& run) {
    return has_numbers(run.*chart.curve) || (chart.second != nullptr && has_numbers(run.*chart.second));
  });
}

std::string json_number(double value, int digits) {
  return std::isfinite(value) ? significant(value, digits) : "null";
}

// Columns rather than pairs: half the bytes. Six digits are more than a screen shows.
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

bool has_device_memory(std::span<const RunData> runs) {
  return std::any_of(runs.begin(), runs.end(),
                     [](const RunData& run) { return has_numbers(run.device_memory); });
}

// What stands in small type behind a chart's title.
std::string note_of(const Chart& chart, std::span<const RunData> runs) {
  if (chart.curve == &RunData::eval_difference) return "to " + runs.front().name + "; below zero is better";
  if (chart.curve == &RunData::device_memory) {
    return runs.size() > 1 && has_device_memory(runs) ? "dashed: the host's" : "";
  }
  if (chart.curve != &RunData::train_loss) return {};
  if (runs.size() > 1) return "in nats per token; with dots: evaluation; faint: training, running mean";
  const std::size_t window = smoothing_window(runs.front().train_loss);
  if (window < 2) return "in nats per token";
  return "in nats per token; the strong line is a running mean of about " + std::to_string(window) +
         " records";
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
  std::vector<double> sums = {0}, counts = {0};  // of what comes before each point
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
    out += ",\"tokens_per_second\":" + json_curve(run.tokens_per_second);
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

std::string charts_html(std::span<const RunData> runs) {
  static constexpr std::string_view kViews =
      "<select id=\"loss-view\" aria-label=\"Range of the loss\"><option value=\"all\">whole range</option>"
      "<option value=\"late\">without the first tenth</option><option value=\"log\">log "
      "scale</option></select>";
  std::string out;
  for (const Chart& chart : kCharts) {
    if (!has_chart(chart, runs)) continue;
    const bool loss = chart.curve == &RunData::train_loss;
    std::string caption = element_of("strong", "", chart.title);
    if (const std::string note = note_of(chart, runs); !note.empty())
      caption += " " + element_of("small", "", note);
    if (loss) caption += kViews;
    out += "<figure" + std::string(loss ? " class=\"wide\"" : "") + ">" + element("figcaption", "", caption) +
           "<div class=\"plot\"><canvas data-chart=\"" + chart.id + "\" role=\"img\" aria-label=\"" +
           chart.title + " against steps\"></canvas></div></figure>\n";
  }
  return out.empty() ? out : element("div", "charts", "\n" + out) + "\n";
}

}  // namespace octavo::train
