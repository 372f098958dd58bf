// The charts for which the runs have data, as figures that the page's script draws.
// SPDX-License-Identifier: MIT
#pragma once

#include "train/report/run_data.h"

#include <span>
#include <string>

namespace octavo_train {

std::string charts_html(std::span<const RunData> runs);

}  // namespace octavo_train
