// The report of one run or several: one HTML page that needs nothing else, neither network nor other files.
// Without script it has every table; with it, curves. Nothing that a run wrote (settings, samples, messages)
// is ever read by a browser as markup or script.
//
//   auto page = octavo::train::make_report(folders);
//   if (page.ok()) write_text_file("report.html", *page);
//
// SPDX-License-Identifier: MIT
#pragma once

#include <octavo/status.h>

#include <span>
#include <string>

namespace octavo::train {

// Reads config.yaml and metrics.jsonl of every folder. Lines of metrics.jsonl that are no record are skipped,
// and the page says how many. An error where a folder is no run.
Result<std::string> make_report(std::span<const std::string> run_folders);

}  // namespace octavo::train
