// SPDX-License-Identifier: MIT
#include "train/report/assets.h"
#include "train/report/charts.h"
#include "train/report/curves.h"
#include "train/report/html.h"
#include "train/report/report.h"
#include "train/report/run_data.h"
#include "train/report/sections.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <vector>

namespace octavo_train {
namespace {

std::string head_html(std::span<const RunData> runs) {
  std::string title;
  for (const RunData& run : runs) title += (title.empty() ? "" : ", ") + run.name;
  return page_head(title + " · Octavo", script_source(chart_js) + " " + script_source(page_js));
}

std::string curves_html(std::span<const RunData> runs) {
  std::string out = charts_html(runs);
  if (out.empty())
    return element_of("p", "quiet", "No training record has been logged yet, so there are no curves.") + "\n";
  out += element_of(
             "p", "quiet charts-note",
             "Curves are against steps. Of one with more than " + std::to_string(kMostPoints) +
                 " records, the lowest and the highest of each of equal parts are drawn, so no peak is "
                 "lost; a break in a line is a number that was not finite. metrics.jsonl has every record.") +
         "\n<noscript>" +
         element_of("p", "notice",
                    "Curves need JavaScript, which is off here. Everything else on this page is complete.") +
         "</noscript>\n";
  if (chart_js.text.empty()) {
    out += element_of(
               "p", "notice",
               "This build of octavo has no curves: they need Chart.js (Debian's libjs-chart.js) when octavo "
               "is built. Everything else on this page is complete.") +
           "\n";
  }
  return out;
}

// Gives every run a unique name, because the page distinguishes runs by their names.
void name_apart(std::vector<RunData>& runs) {
  std::map<std::string, int> uses;
  for (const RunData& run : runs) ++uses[run.name];
  for (RunData& run : runs) {
    if (uses[run.name] > 1) run.name = run.path;
  }
  std::map<std::string, int> seen;
  for (RunData& run : runs) {
    const int count = ++seen[run.name];
    if (count > 1) run.name += " (" + std::to_string(count) + ")";
  }
}

}  // namespace

Result<std::string> make_report(std::span<const std::string> run_folders) {
  if (run_folders.empty()) return Status::invalid("[report] runs: got none, expected at least one folder");
  std::vector<RunData> runs;
  for (const std::string& folder : run_folders) {
    Result<RunData> run = read_run(folder);
    if (!run.ok()) return run.status();
    runs.push_back(std::move(*run));
  }
  name_apart(runs);
  add_differences(runs);
  std::string out =
      head_html(runs) + "<body>\n<main>\n" + header_html(runs) + summary_html(runs) +
      section("curves", "Curves", curves_html(runs)) + memory_html(runs) + examples_html(runs) +
      samples_html(runs) + settings_html(runs) + events_html(runs) +
      element_of("footer", "quiet",
                 "Made by octavo report from config.yaml and metrics.jsonl. This page needs no network.") +
      "\n</main>\n";
  return out + page_end(curves_json(runs), {&chart_js, &page_js});
}

}  // namespace octavo_train
