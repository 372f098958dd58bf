// Lists the charts of a page, as figures that the page's script draws.
// SPDX-License-Identifier: MIT
#include "train/report/charts.h"

#include "train/report/curves.h"
#include "train/report/html.h"
#include "train/report/words.h"
#include "train/base/metric_names.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace octavo_train {
namespace {

struct Chart {
  std::string id;
  std::string title;
  Curve RunData::*curve = nullptr;   // null: the curve of `metric`
  Curve RunData::*second = nullptr;  // drawn in the same chart; may be null
  std::string metric = {};
};

bool has_numbers(const Curve& curve) {
  return std::any_of(curve.begin(), curve.end(), [](const Point& point) { return std::isfinite(point.y); });
}

bool has_numbers(const Chart& chart, const RunData& run) {
  if (chart.curve == nullptr) {
    const auto at = std::ranges::find(run.metrics, chart.metric, &MetricCurve::name);
    return at != run.metrics.end() && has_numbers(at->curve);
  }
  return has_numbers(run.*chart.curve) || (chart.second != nullptr && has_numbers(run.*chart.second));
}

// Returns "Throughput" if the runs have different units, because the name of one unit is wrong for the
// others.
std::string throughput_title(std::span<const RunData> runs) {
  const bool same = std::ranges::all_of(runs, [&](const RunData& run) { return run.unit == runs[0].unit; });
  return same ? rate_name(runs.front()) : "Throughput";
}

// Returns the charts in the order of the page, including charts without data.
std::vector<Chart> all_charts(std::span<const RunData> runs) {
  std::vector<Chart> out = {{"loss", "Loss", &RunData::train_loss, &RunData::eval_loss}};
  std::set<std::string> metrics;
  for (const RunData& run : runs) {
    for (const MetricCurve& metric : run.metrics) metrics.insert(metric.name);
  }
  for (const std::string& name : metrics)
    out.push_back({"metric", evaluation_label(name), nullptr, nullptr, name});
  const std::vector<Chart> others = {
      {"difference", "Evaluation loss, difference", &RunData::eval_difference},
      {"lr", "Learning rate", &RunData::lr},
      {"grad_norm", "Gradient norm", &RunData::grad_norm},
      {"throughput", throughput_title(runs), &RunData::throughput},
      {"memory", "Memory", &RunData::device_memory, &RunData::host_memory},
      {"loss_scale", "Loss scale", &RunData::loss_scale},
  };
  out.insert(out.end(), others.begin(), others.end());
  return out;
}

bool has_device_memory(std::span<const RunData> runs) {
  return std::ranges::any_of(runs, [](const RunData& run) { return has_numbers(run.device_memory); });
}

std::string metric_note(const std::string& name, std::span<const RunData> runs) {
  for (const RunData& run : runs) {
    const auto at = std::ranges::find(run.metrics, name, &MetricCurve::name);
    if (at != run.metrics.end()) return at->higher_is_better ? "higher is better" : "lower is better";
  }
  return {};
}

// Returns the text in small type after a chart's title.
std::string note_of(const Chart& chart, std::span<const RunData> runs) {
  if (chart.curve == nullptr) return metric_note(chart.metric, runs);
  if (chart.curve == &RunData::eval_difference) return "to " + runs.front().name + "; below zero is better";
  if (chart.curve == &RunData::device_memory) {
    return runs.size() > 1 && has_device_memory(runs) ? "dashed: the host's" : "";
  }
  if (chart.curve != &RunData::train_loss) return {};
  std::string unit = entropy_unit(runs.front(), "nats");
  if (!unit.empty()) unit = "in " + unit;
  const std::size_t window = smoothing_window(runs.front().train_loss);
  if (runs.size() == 1 && window < 2) return unit;
  return (unit.empty() ? "" : unit + "; ") +
         (runs.size() > 1
              ? "with dots: evaluation; faint: training, running mean"
              : "the strong line is a running mean of about " + std::to_string(window) + " records");
}

}  // namespace

std::string charts_html(std::span<const RunData> runs) {
  static constexpr std::string_view kViews =
      "<select id=\"loss-view\" aria-label=\"Range of the loss\"><option value=\"all\">whole range</option>"
      "<option value=\"late\">without the first tenth</option><option value=\"log\">log "
      "scale</option></select>";
  std::string out;
  for (const Chart& chart : all_charts(runs)) {
    if (std::ranges::none_of(runs, [&](const RunData& run) { return has_numbers(chart, run); })) continue;
    const bool loss = chart.curve == &RunData::train_loss;
    std::string caption = element_of("strong", "", chart.title);
    if (const std::string note = note_of(chart, runs); !note.empty())
      caption += " " + element_of("small", "", note);
    if (loss) caption += kViews;
    out += "<figure" + std::string(loss ? " class=\"wide\"" : "") + ">" + element("figcaption", "", caption) +
           "<div class=\"plot\"><canvas data-chart=\"" + chart.id + "\"" +
           (chart.curve == nullptr ? " data-metric=\"" + escaped(chart.metric) + "\"" : "") +
           " role=\"img\" aria-label=\"" + escaped(chart.title) +
           " against steps\"></canvas></div></figure>\n";
  }
  return out.empty() ? out : element("div", "charts", "\n" + out) + "\n";
}

}  // namespace octavo_train
