// The report of one or several runs: one HTML page that needs neither a network nor other files. A browser
// never interprets texts of a run (settings, samples, messages) as markup or script.
//
//   auto page = octavo_train::make_report(folders);
//   if (page.ok()) write_text_file("report.html", *page);
//
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {

// Reads config.yaml and metrics.jsonl of every folder. Lines of metrics.jsonl that are not records are
// skipped, and the page shows their number. Returns an error if a folder is not a run's folder: it names the
// folder and what is missing.
Result<std::string> make_report(std::span<const std::string> run_folders);

// Returns what the page draws. `runs` has an object per run:
//
//   name, path         the folder's name (the path if it is not unique), the folder
//   settings           [["training.learning_rate", "0.001"], …]
//   start, end         the records of the last session; null if there are none
//   memory             the memory record, or null
//   eval, sample, checkpoint, stage, warning, change    {all: their number, last: the last records}
//   examples           {step, rows: [{name, reference: [[word, differs], …], hypothesis, errors, words}]} of
//                      the last evaluation that has examples, or null
//   curves             {train, mean, eval, difference, lr, grad_norm, throughput, loss_scale, device_memory,
//                      host_memory}, each {x, y}; `difference` is the evaluation loss less that of the first
//                      run; `mean` is null if `train` is too short for a running mean
//   metrics            [{name, higher_is_better, curve}] of evaluations, besides the loss
//   records, bad_lines, sessions, last_step, unit (of throughput), units, skipped (steps), seconds (the time
//   between sessions does not count), began, device_peak, host_peak, window (of the running mean),
//   train_loss (the mean of the last window), speed (the median)
//
// Numbers that were not logged are null.
Result<nlohmann::ordered_json> report_data(std::span<const std::string> run_folders);

// The functions below thin and smooth the curves of a report, and write them as JSON.
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
