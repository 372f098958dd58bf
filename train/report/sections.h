// The parts of the page besides its curves. Each is HTML that needs no script, or empty where the runs have
// nothing for it.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/report/html.h"
#include "train/report/run_data.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace octavo::train {

inline constexpr std::size_t kRunColors = 8;  // as many as assets/page.css has

std::string header_html(std::span<const RunData> runs);    // title, what it is, notices
std::string summary_html(std::span<const RunData> runs);   // one run's facts, or a comparison
std::string memory_html(std::span<const RunData> runs);    // by owner: bars and a table
std::string settings_html(std::span<const RunData> runs);  // of several runs those that differ, then the rest
std::string samples_html(std::span<const RunData> runs);
std::string examples_html(std::span<const RunData> runs);  // of the last evaluation, with differences marked
std::string events_html(std::span<const RunData> runs);    // evaluations, stages, checkpoints, warnings

// The name of a run above its part of a section; empty where there is one run.
std::string run_heading(std::span<const RunData> runs, std::size_t run);

// The head of a table with a column per run: an empty cell, then the names in their colours.
std::vector<Cell> run_heads(std::span<const RunData> runs, std::string style = {});

}  // namespace octavo::train
