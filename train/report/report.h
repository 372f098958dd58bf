// The report of one or several runs: one HTML page that needs neither a network nor other files. Its tables
// need no script; its curves do. A browser never interprets texts of a run (settings, samples, messages) as
// markup or script.
//
//   auto page = octavo_train::make_report(folders);
//   if (page.ok()) write_text_file("report.html", *page);
//
// SPDX-License-Identifier: MIT
#pragma once

#include "train/base/status.h"

#include <span>
#include <string>

namespace octavo_train {

// Reads config.yaml and metrics.jsonl of every folder. Lines of metrics.jsonl that are not records are
// skipped, and the page shows their number. Returns an error if a folder is not a run's folder.
Result<std::string> make_report(std::span<const std::string> run_folders);

}  // namespace octavo_train
