// The sections of the page besides its curves. Each function returns HTML that needs no script, or an empty
// text if the runs have no data for it.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/report/html.h"
#include "train/report/run_data.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace octavo_train {

inline constexpr std::size_t kRunColors = 8;  // number of run colours in assets/page.css

std::string header_html(std::span<const RunData> runs);    // title, subtitle, notices
std::string summary_html(std::span<const RunData> runs);   // one run's facts, or a comparison
std::string memory_html(std::span<const RunData> runs);    // memory by owner: bars and a table
std::string settings_html(std::span<const RunData> runs);  // for several runs, differing settings first
std::string samples_html(std::span<const RunData> runs);
std::string examples_html(std::span<const RunData> runs);  // from the last evaluation, differences marked
std::string events_html(std::span<const RunData> runs);    // evaluations, stages, checkpoints, warnings

// Returns the heading of a run's part of a section: its name. Empty if there is only one run.
std::string run_heading(std::span<const RunData> runs, std::size_t run);

// Returns the head of a table with a column per run: an empty cell, then the names in their colours.
std::vector<Cell> run_heads(std::span<const RunData> runs, std::string style = {});

}  // namespace octavo_train
