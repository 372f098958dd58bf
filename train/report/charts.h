// The charts that runs have data for, as figures that wait for the page's script.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/report/run_data.h"

#include <span>
#include <string>

namespace octavo::train {

std::string charts_html(std::span<const RunData> runs);

}  // namespace octavo::train
